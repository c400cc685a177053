-- SPDX-License-Identifier: Apache-2.0
-- wrk: one page of metrics, printed.
local shown = false
function response(status, headers, body)
    if not shown then print(body) end
    shown = true
    wrk.thread:stop()
end
