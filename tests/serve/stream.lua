-- SPDX-License-Identifier: Apache-2.0
-- wrk: streamed chats of 32 tokens, each with another seed. Counts answers that are not whole streams.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init() n, bad = 0, 0 end
function request()
    n = n + 1
    return wrk.format(nil, "/v1/chat/completions", nil, string.format(
        '{"messages": [{"role": "user", "content": "12+34="}], "seed": %d, "max_tokens": 32, "ignore_eos": true, "stream": true}', n))
end
function response(status, headers, body)
    if status ~= 200 or not body:find("data: [DONE]", 1, true) then bad = bad + 1 end
end
function done(summary, latency)
    local all = 0
    for _, thread in ipairs(threads) do all = all + thread:get("bad") end
    local e = summary.errors
    print(string.format("%d requests, %d not whole, %d errors of sockets", summary.requests, all, e.connect + e.read + e.write + e.timeout))
end
