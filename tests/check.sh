#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the rules and runs the tests of the files changed since the last commit, within 60 seconds. Lists the tests it left out.
#   tests/check.sh BUILD PROGRAM CASE...       all test programs and cases, of which it chooses
# A test is chosen if it has changed itself, if it is in the folder of tests that mirrors the folder of a changed source, or if its name begins like
# the name of a changed source.
set -u
build=$1
shift
limit=${SECONDS_ALLOWED:-60} began=$(date +%s)
left() { echo $((limit - ($(date +%s) - began))); }
failed=0 omitted=
changed=$({ git diff --name-only HEAD && git ls-files --others --exclude-standard; } | sort -u)
[ -n "$changed" ] || echo "nothing changed since the last commit: only the rules are checked"
# Runs a command within the remaining time; a command that does not end in time counts as left out.
try() { # NAME COMMAND...
    name=$1 seconds=$(left)
    shift
    if [ "$seconds" -lt 1 ]; then omitted="$omitted $name" && return 124; fi
    timeout "$seconds" "$@"
    code=$?
    [ $code != 124 ] || omitted="$omitted $name"
    [ $code = 0 ] || [ $code = 124 ] || failed=$((failed + 1))
    return $code
}
make() { try "$(basename "$1")" "${MAKE:-make}" --no-print-directory -s "$@"; }
sources=$(echo "$changed" | grep '\.[ch]$' | while read -r file; do [ -f "$file" ] && echo "$file"; done)
[ -z "$sources" ] || try format sh tests/lint.sh format $sources
make layers
make quiet
! echo "$sources" | grep -q '\.h$' || make headers
# Order: changed tests, tests of changed folders, cases of changed commands.
chosen=$(printf '%s\n' "$@" | awk -v changed="$changed" -v build="$build/" '
    BEGIN { n = split(changed, files, "\n")
            for (i = 1; i <= n; i++) {
                path = files[i]; stem = path; sub(/.*\//, "", stem); sub(/\.[a-z]+$/, "", stem)
                folder = path; sub(/\/[^\/]*$/, "", folder); sub(/^lib\//, "", folder); sub(/^cmd\/.*/, "cmd", folder)
                if (path ~ /^tests\//) itself[path] = 1
                else if (path ~ /\.(c|h|def)$/) { near["tests/" folder] = 1; like[stem] = 1; if (stem ~ /^cmd_/) { sub(/^cmd_/, "", stem); command[stem] = 1 } }
            } }
    { source = $0; sub("^" build, "", source); name = source; sub(/.*\//, "", name); sub(/\.case$/, "", name); sub(/^(test|fuzz)_/, "", name)
      place = source; sub(/\/[^\/]*$/, "", place)
      if (source in itself || (source ".c") in itself) print 1, $0
      else if (name in like || name in command) print 2, $0
      else if (place in near) print 3, $0
      else for (word in command) if (source ~ /\.case$/ && index(name, word) == 1) { print 4, $0; break } }' | sort -k1,1n -s | cut -d' ' -f2-)
for item in $chosen; do
    case $item in # builds a test program first, or tune-bench for a case that runs it
    "$build"/*) make "$item" || continue ;;
    *) ! grep -q 'TUNE-bench' "$item" || make "$build/tune-bench" || continue ;;
    esac
    try "$(basename "$item" .case)" sh tests/run.sh "$build" "$item" >"$build/check.log" 2>&1
    sed '/^-- the slowest:/,$d' "$build/check.log"
done
[ -z "$omitted" ] || echo "left out after $limit seconds:$omitted"
[ $failed = 0 ] && echo "check: fine, $(($(date +%s) - began)) s" || { echo "check: $failed failed"; exit 1; }
