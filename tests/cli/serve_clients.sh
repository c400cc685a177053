#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Clients of other makers against the server: openai, langchain-openai, litellm, lm-eval, as far as $CLIENTS_PYTHON (python3) has them.
#   tests/cli/serve_clients.sh TUNE
set -u
tune=$1
python=${CLIENTS_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; echo "[  PASSED  ] 0 test(s)."; echo "[  SKIPPED ] 1 test(s)."; exit 0; }
folder=$(mktemp -d) || exit 1
export TEST_SERVER_KEY=sk-key-of-the-test
"$tune" serve recipes/demo/model --chat-template chatml --port 0 --quiet --api-key-env TEST_SERVER_KEY >"$folder/url" 2>"$folder/err" &
server=$!
trap 'kill -TERM $server 2>/dev/null; rm -rf "$folder"' EXIT
while [ ! -s "$folder/url" ] && kill -0 $server 2>/dev/null; do sleep 0.05; done
OPENAI_API_KEY=$TEST_SERVER_KEY timeout 120 "$python" tests/serve/clients.py "$(cat "$folder/url")" "$TEST_SERVER_KEY"
code=$?
cat "$folder/err"
exit $code
