#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks that the runner of the command-line cases detects failures. Needs no arguments.
set -u
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
printf '#!/bin/sh\nprintf "%%s\\n" "$@"; echo "tune: error: bad thing" >&2; exit 4\n' >"$work/tune"
chmod +x "$work/tune"
passed=0 failed=0
# expect RESULT NAME TEXT: running a case with this text must end with exit code RESULT
expect() {
    printf -- "$3" >"$work/$2.case"
    sh tests/cli/run.sh "$work/tune" "$work/$2.case" >"$work/log" 2>&1
    if [ $? = "$1" ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "case '$2' should end with $1:" && cat "$work/log"; fi
}
expect 0 good 'text\n--- file a/b\nx\n--- run\n$TUNE one $TMP; cat $TMP/a/b; exit 4\n--- exit 4\n--- stdout\none\n$TMP\nx\n--- stderr\nbad thing\n'
expect 0 pattern '--- run\n$TUNE 3.14\n--- exit 4\n--- stdout\n~ [0-9.]+\n'
expect 0 skipped '--- needs /no/such/thing\n--- run\nfalse\n'
expect 0 two-steps '--- run\ntrue\n--- run\n$TUNE\n--- exit 4\n'
expect 1 wrong-exit '--- run\n$TUNE one\n'
expect 1 wrong-line '--- run\n$TUNE one\n--- exit 4\n--- stdout\ntwo\n'
expect 1 wrong-pattern '--- run\n$TUNE one\n--- exit 4\n--- stdout\n~ on\n'
expect 1 too-much '--- run\n$TUNE one two\n--- exit 4\n--- stdout\none\n'
expect 1 too-little '--- run\n$TUNE one\n--- exit 4\n--- stdout\none\ntwo\n'
expect 1 wrong-error '--- run\n$TUNE one\n--- exit 4\n--- stderr\nworse thing\n'
expect 1 second-step '--- run\ntrue\n--- run\n$TUNE\n'
expect 1 unknown-section '--- run\ntrue\n--- stdou\n'
expect 1 empty 'only text\n'
printf -- '--- run\n$TUNE new\n--- exit 0\n--- stdout\n~ n.w\nold\n--- stderr\nold\n' >"$work/update.case"
sh tests/cli/run.sh --update "$work/tune" "$work/update.case" >/dev/null
if [ "$(tr '\n' '|' <"$work/update.case")" = '--- run|$TUNE new|--- exit 4|--- stdout|~ n.w|--- stderr|tune: error: bad thing|' ]; then
    passed=$((passed + 1))
else
    failed=$((failed + 1)) && echo "update wrote:" && cat "$work/update.case"
fi
echo "[  PASSED  ] $passed test(s)."
[ $failed = 0 ] || { echo "[  FAILED  ] $failed test(s), listed above"; exit 1; }
