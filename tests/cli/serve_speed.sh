#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures the server: tokens per second of 1, 8 and 32 streams next to tune-bench's decoding of as many sequences, and the time to the first token. With
# LLAMA_SERVER=llama-server and LLAMA_GGUF=model.gguf also llama.cpp's server, on the same model. Not a test: run it on a quiet machine.
#   [LLAMA_SERVER=... LLAMA_GGUF=...] [STREAMS="1 8 32"] [ROUNDS=3] [SECONDS_EACH=20] tests/cli/serve_speed.sh TUNE TUNE-BENCH MODEL
# The rounds alternate, and the medians are compared. The server's rate `together` is measured as tune-bench measures decoding (tests/serve/streams.py).
set -u
tune=$1 bench=$2 model=$3
folder=$(mktemp -d) || exit 1
pids=
trap 'kill $pids 2>/dev/null; rm -rf "$folder"' EXIT
"$tune" serve "$model" --port 0 --max-context 1024 --quiet >"$folder/url" 2>"$folder/err" &
pids=$!
while [ ! -s "$folder/url" ] && kill -0 "$pids" 2>/dev/null; do sleep 0.1; done
[ -s "$folder/url" ] || { cat "$folder/err"; exit 1; }
url=$(cat "$folder/url")
other=
if [ -n "${LLAMA_SERVER:-}" ]; then
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    "$LLAMA_SERVER" -m "$LLAMA_GGUF" --host 127.0.0.1 --port "$port" -c 32768 -np 32 -t "$(nproc)" --no-webui >"$folder/llama" 2>&1 &
    pids="$pids $!"
    other=http://127.0.0.1:$port
    until python3 -c "import urllib.request; urllib.request.urlopen('$other/health')" 2>/dev/null; do
        kill -0 $! 2>/dev/null || { tail -n 5 "$folder/llama"; other=; break; }
        sleep 0.5
    done
fi
# The value of a key of a line of JSON, then the median of a file of numbers.
value() { sed -nE "s/.*\"$1\": ([0-9.e+-]+).*/\1/p"; }
median() { sort -n "$1" | awk '{ x[NR] = $1 } END { printf "%.1f", x[int((NR + 1) / 2)] }'; }
for n in ${STREAMS:-1 8 32}; do
    tokens=128
    [ "$n" = 1 ] || tokens=64
    rm -f "$folder/ours" "$folder/bench" "$folder/theirs"
    for round in $(seq "${ROUNDS:-3}"); do
        "$bench" "$model" --work decode --batch "$n" --tokens $tokens --json | value tokens_per_second >>"$folder/bench"
        python3 tests/serve/streams.py "$url" "$n" $tokens | value together >>"$folder/ours"
        [ -z "$other" ] || python3 tests/serve/streams.py "$other" "$n" $tokens | value together >>"$folder/theirs"
    done
    ours=$(median "$folder/ours") decoding=$(median "$folder/bench")
    echo "$n streams: $ours tokens/s; tune-bench decodes $decoding; $(awk "BEGIN { printf \"%.3f\", $ours / $decoding }") of it"
    python3 tests/serve/streams.py "$url" "$n" $tokens "${SECONDS_EACH:-20}" | sed 's/^/    one after another: /'
    [ -z "$other" ] || {
        echo "    llama.cpp: $(median "$folder/theirs") tokens/s; ours are $(awk "BEGIN { printf \"%.2f\", $ours / $(median "$folder/theirs") }") of it"
        python3 tests/serve/streams.py "$other" "$n" $tokens "${SECONDS_EACH:-20}" | sed 's/^/    llama.cpp, one after another: /'
    }
done
