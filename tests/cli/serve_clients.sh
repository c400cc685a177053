#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Clients of other makers against the server: openai, anthropic, langchain-openai, litellm, lm-eval, open-webui, as far as $CLIENTS_PYTHON (python3) has them. With
# TEST_LONG=1 pip installs all but open-webui, which brings torch, into a temporary folder; openai in its lowest and its newest version.
#   [TEST_LONG=1] tests/cli/serve_clients.sh TUNE
set -u
tune=$1
python=${CLIENTS_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; echo "[  PASSED  ] 0 test(s)."; echo "[  SKIPPED ] 1 test(s)."; exit 0; }
folder=$(mktemp -d) || exit 1
export TEST_SERVER_KEY=sk-key-of-the-test
export OPENAI_API_KEY=$TEST_SERVER_KEY LITELLM_LOCAL_MODEL_COST_MAP=True
"$tune" serve recipes/demo/model --chat-template tests/serve/tools.jinja --port 0 --max-context 4096 --quiet --api-key-env TEST_SERVER_KEY >"$folder/url" 2>"$folder/err" &
server=$!
trap 'kill -TERM $server 2>/dev/null; rm -rf "$folder"' EXIT
while [ ! -s "$folder/url" ] && kill -0 $server 2>/dev/null; do sleep 0.05; done
code=0
check() { timeout 300 "$python" tests/serve/clients.py "$(cat "$folder/url")" "$TEST_SERVER_KEY" "$tune" "$@" || code=1; }
# The clients of the words after the first three, which pip gets by the third.
install() {
    target=$folder/$1 packages=$3
    if timeout 300 "$python" -m pip install -q --disable-pip-version-check --target "$target" $packages 2>"$folder/pip"; then
        echo "$1: $("$python" -m pip list --path "$target" 2>/dev/null | grep -E "^($2) " | tr -s '\n ' ' ')"
        shift 3
        export PYTHONPATH="$target"
        check "$@"
        unset PYTHONPATH
    else
        echo "skipped: pip cannot install $packages: $(tail -n 1 "$folder/pip")"
        echo "[  SKIPPED ] 1 test(s)."
        echo "[  PASSED  ] 0 test(s)."
    fi
    rm -rf "$target"
}
if [ -n "${TEST_LONG:-}" ] && [ -z "${CLIENTS_PYTHON:-}" ]; then
    install lowest openai 'openai==1.0.0 httpx<0.28' openai
    install newest 'openai|anthropic|langchain-openai' 'openai anthropic langchain-openai' openai anthropic langchain-openai
    install litellm litellm litellm litellm
    install lm-eval lm_eval 'lm-eval[api]' lm-eval
    check open-webui
else
    check openai anthropic langchain-openai litellm lm-eval open-webui
fi
cat "$folder/err"
exit $code
