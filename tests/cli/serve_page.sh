#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The chat page in headless Chromium, one of the long tests. Debian: apt-get install chromium chromium-driver.
#   TEST_LONG=1 [PICTURES=FOLDER] tests/cli/serve_page.sh TUNE
set -u
tune=$1
driver=$(command -v chromedriver) || driver=
if [ -z "${TEST_LONG:-}" ] || [ -z "$driver" ] || ! command -v python3 >/dev/null; then
    echo "skipped: needs TEST_LONG=1, python3 and chromedriver"
    echo "[  PASSED  ] 0 test(s)."
    echo "[  SKIPPED ] 1 test(s)."
    exit 0
fi
folder=$(mktemp -d) || exit 1
"$tune" init recipes/demo/model -o "$folder/model" --quiet || exit 1 # random weights do not end their answers early
"$tune" serve "$folder/model" --chat-template chatml --port 0 --max-context 16384 --quiet >"$folder/url" 2>"$folder/err" &
server=$!
trap 'kill -TERM $server 2>/dev/null; rm -rf "$folder"' EXIT
while [ ! -s "$folder/url" ] && kill -0 $server 2>/dev/null; do sleep 0.05; done
timeout 300 python3 tests/serve/page.py "$(cat "$folder/url")" "$driver" "${PICTURES:-$folder}"
code=$?
cat "$folder/err"
exit $code
