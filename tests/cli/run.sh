#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs command-line cases: files with commands, their expected output and exit codes. README.md describes the format.
#   tests/cli/run.sh [--update] TUNE CASE...
# --update writes the program's current output into the cases instead of comparing it. Totals have cmocka's format.
set -u
update=
[ "$1" = --update ] && update=1 && shift
case $1 in /*) TUNE=$1 ;; *) TUNE=$PWD/$1 ;; esac
shift
export TUNE FIXTURES=tests/cli/fixtures SHARED=../shared
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
limit=
command -v timeout >/dev/null && limit="timeout 600"
case $TUNE in *build/san* | *build/tsan*) sanitized=1 ;; *) sanitized= ;; esac
passed=0 skipped=0 failed=

# Splits a case into N.cmd, N.exit, N.out, N.err for each step, `needs`, and files below tmp/.
take_apart() {
    rm -rf "$work"/* && mkdir "$work/tmp" && : >"$work/needs"
    sed -n 's/^--- file //p' "$1" | while read -r name; do mkdir -p "$(dirname "$work/tmp/$name")"; done
    awk -v work="$work" -v fixtures="$FIXTURES" -v shared="$SHARED" '
        /^---/         { file = 0 }
        /^--- long/    { target = ""; next }
        /^--- unless / { target = ""; next }
        /^--- needs /  { print substr($0, 11) > (work "/needs"); target = ""; next }
        /^--- file /   { target = work "/tmp/" substr($0, 10); printf "" > target; file = 1; next }
        /^--- run/     { target = work "/" ++n ".cmd"; next }
        /^--- exit /   { print $3 > (work "/" n ".exit"); target = ""; next }
        /^--- stdout/  { target = work "/" n ".out"; printf "" > target; next }
        /^--- stderr/  { target = work "/" n ".err"; printf "" > target; next }
        /^---/         { print "unknown section: " $0; exit 1 }
        file           { gsub(/\$TMP/, work "/tmp"); gsub(/\$FIXTURES/, fixtures); gsub(/\$SHARED/, shared) }
        target != ""   { print > target }' "$1"
}

# Prints how step $1 differs from the expected output; silent and true if it does not.
compare() {
    want=0
    [ -f "$work/$1.exit" ] && want=$(cat "$work/$1.exit")
    ok=0
    [ "$want" = "$(cat "$work/$1.code")" ] || { echo "step $1: exit code $(cat "$work/$1.code"), expected $want; stderr:"; tail -n 5 "$work/$1.got_err"; ok=1; }
    if [ -f "$work/$1.out" ]; then
        awk -v step="$1" -v got="$work/$1.got_out" '
            { have = (getline line < got) > 0
              fits = have && (/^~ / ? line ~ ("^(" substr($0, 3) ")$") : line == $0)
              if (!fits) { printf "step %s: line %d of stdout: expected\n  %s\ngot\n  %s\n", step, FNR, $0, have ? line : "(nothing)"; bad = 1; exit 1 } }
            END { if (!bad && (getline line < got) > 0) { printf "step %s: more on stdout than expected: %s\n", step, line; exit 1 } exit bad }' "$work/$1.out" || ok=1
    fi
    if [ -f "$work/$1.err" ]; then
        while IFS= read -r part; do
            grep -qF -- "$part" "$work/$1.got_err" || { printf 'step %s: not on stderr: %s\nwhich holds:\n' "$1" "$part"; tail -n 5 "$work/$1.got_err"; ok=1; }
        done <"$work/$1.err"
    fi
    return $ok
}

run_step() {
    TMP=$work/tmp $limit sh "$work/$1.cmd" >"$work/raw_out" 2>"$work/raw_err" </dev/null
    echo $? >"$work/$1.code"
    sed "s|$work/tmp|\$TMP|g" "$work/raw_out" >"$work/$1.got_out"
    sed "s|$work/tmp|\$TMP|g" "$work/raw_err" >"$work/$1.got_err"
}

# Rewrites the case with the output of the steps. Lines "~ pattern" stay if they match; stderr parts stay if they are found.
rewrite() {
    awk -v work="$work" '
        function flush_out(   i, line, name) {
            name = work "/" n ".got_out"
            for (i = 1; (getline line < name) > 0; i++) print (i in kept && kept[i] ~ /^~ / && line ~ ("^(" substr(kept[i], 3) ")$")) ? kept[i] : line
            close(name) }
        function flush_err(   i, line, name, all, lost, parts) {
            name = work "/" n ".got_err"; parts = 0
            while ((getline line < name) > 0) { all = all line "\n"; if (line ~ /^(tune|hint):/) error[++parts] = line }
            for (i = 1; i <= count; i++) if (!index(all, kept[i])) lost = 1
            if (lost) for (i = 1; i <= parts; i++) print error[i]
            else for (i = 1; i <= count; i++) print kept[i]
            close(name) }
        function flush() { if (section == "stdout") flush_out(); if (section == "stderr") flush_err(); section = ""; count = 0; split("", kept) }
        /^---/ { flush(); if ($2 == "run") n++; section = $2
                 if ($2 == "exit") { getline code < (work "/" n ".code"); $0 = "--- exit " code; section = "" } print; next }
        section == "stdout" || section == "stderr" { kept[++count] = $0; next }
        { print }
        END { flush() }' "$1" >"$work/new" && cat "$work/new" >"$1"
}

for file in "$@"; do
    name=$(basename "$file" .case)
    echo "[ RUN      ] $name"
    verdict=OK
    if ! take_apart "$file"; then
        verdict=FAILED
    elif [ -n "$sanitized" ] && grep -q '^--- long' "$file"; then
        echo "skipped: takes too long under sanitizers" && verdict=SKIPPED
    elif build=$(sed -n 's/^--- unless //p' "$file") && [ -n "$build" ] && [ "${TUNE#*/build/"$build"}" != "$TUNE" ]; then
        echo "skipped: not under $build" && verdict=SKIPPED
    elif missing=$(while read -r path; do [ -e "$path" ] || echo "$path"; done <"$work/needs") && [ -n "$missing" ]; then
        echo "skipped: '$missing' is not here" && verdict=SKIPPED
    else
        step=1
        while [ -f "$work/$step.cmd" ]; do
            run_step $step
            [ -n "$update" ] || compare $step || verdict=FAILED
            step=$((step + 1))
        done
        [ $step -gt 1 ] || { echo "no '--- run' section" && verdict=FAILED; }
        [ -z "$update" ] || rewrite "$file"
    fi
    case $verdict in
    OK) passed=$((passed + 1)) && echo "[       OK ] $name" ;;
    SKIPPED) skipped=$((skipped + 1)) && echo "[  SKIPPED ] $name" ;;
    *) failed="$failed $name" && echo "[  FAILED  ] $name" ;;
    esac
done
echo "[  PASSED  ] $passed test(s)."
[ $skipped = 0 ] || echo "[  SKIPPED ] $skipped test(s)."
[ -z "$failed" ] && exit 0
echo "[  FAILED  ] $(echo $failed | wc -w) test(s), listed below:"
printf '[  FAILED  ] %s\n' $failed
exit 1
