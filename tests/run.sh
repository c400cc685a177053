#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs test programs, command-line cases and scripts, several at a time, and adds up their results.
#   tests/run.sh BUILD ITEM...
# ITEM: a program below BUILD/tests, tests/cli/NAME.case or tests/cli/NAME.sh. JOBS=n: how many at once. The output of each stays in
# BUILD/tests/NAME.log. In the release build, an item fails if it takes more processor time than tests/budgets allows.
set -u
name_of() { # the name of a program; cli/NAME for cases and scripts
    case $1 in tests/*) echo "$1" | sed 's|^tests/||; s|\.[a-z]*$||' ;; *) basename "$1" ;; esac
}

if [ "$1" = --one ]; then # one item: its output into a file, its counts and seconds into another
    build=$2 item=$3 name=$(name_of "$3") limit=
    log=$build/tests/$name.log
    mkdir -p "$(dirname "$log")"
    command -v timeout >/dev/null && limit="timeout ${TEST_SECONDS:-1200}"
    began=$(date +%s.%N)
    case $item in
    *.case) $limit sh tests/cli/run.sh "$build/tune" "$item" >"$log" 2>&1 ;;
    *.sh) $limit sh "$item" "$build/tune" >"$log" 2>&1 ;;
    *) $limit "$item" >"$log" 2>&1 ;;
    esac
    code=$?
    # The last line of `times` is the processor time of the item, user and system, as 1m2.3s. Budgets use it, since the machine may be shared.
    times >"$log.times"
    spent=$(awk 'END { for (i = 1; i <= 2; i++) { split($i, part, /[ms]/); sum += part[1] * 60 + part[2] } printf "%.1f", sum }' "$log.times")
    budget=$(awk -v name="$name" 'BEGIN { seconds = 20 } $1 == name { seconds = $2 } END { print seconds }' tests/budgets)
    case $build in */release) [ -z "${TEST_LONG:-}" ] || budget=1000000 ;; *) budget=1000000 ;; esac
    # Reads cmocka's totals. A program that dies or prints no totals has failed, even if all tests before passed.
    awk -v code=$code -v name="$name" -v began="$began" -v ended="$(date +%s.%N)" -v spent="$spent" -v budget="$budget" '
        /^\[  PASSED  \] [0-9]+ test/ { passed += $4; spoke = 1 }
        /^\[  FAILED  \] [0-9]+ test/ { failed += $4; spoke = 1 }
        /^\[  SKIPPED \] [0-9]+ test/ { skipped += $4; spoke = 1 }
        END { if ((code != 0 && failed == 0) || !spoke) failed += 1
              if (spent + 0 > budget) failed += 1
              printf "%d %d %d %s %d %.1f %s %d\n", passed, failed, skipped, name, code, ended - began, spent, budget }' "$log" >"$log.count"
    read -r passed failed skipped name code seconds spent budget <"$log.count"
    over=$(awk -v spent="$spent" -v budget="$budget" 'BEGIN { if (spent + 0 > budget) printf ", over its budget of %d s of processor time (tests/budgets)", budget }')
    [ "$failed" = 0 ] || { printf -- '---- %s, exit code %s%s:\n' "$name" "$code" "$over"; tail -n 60 "$log"; }
    printf '%-28s %6s s (processor %6s s)  %s passed, %s failed, %s skipped%s\n' "$name" "$seconds" "$spent" "$passed" "$failed" "$skipped" "$over"
    exit 0
fi
build=$1
shift
mkdir -p "$build/tests"
find "$build/tests" -name '*.log.count' -exec rm -f {} +
export TUNE="$build/tune" # for tests that run the program
# Waiting threads must not spin, since several programs share the processor. Leaks are errors; libraries without instrumentation are not checked.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
export UBSAN_OPTIONS="print_stacktrace=1" TSAN_OPTIONS="ignore_noninstrumented_modules=1"
export LSAN_OPTIONS="suppressions=tests/support/lsan.supp:print_suppressions=0"
# Temporary files are in memory if it has space and allows running scripts, since every atomic write syncs to the disk.
if [ -z "${TMPDIR:-}" ] && [ "$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')" -gt 4000000 ] 2>/dev/null &&
    probe=$(mktemp /dev/shm/tune-test-XXXXXX 2>/dev/null); then
    printf '#!/bin/sh\n' >"$probe" && chmod +x "$probe" && "$probe" 2>/dev/null && export TMPDIR=/dev/shm
    rm -f "$probe"
fi
# The longest items start first, so that none runs alone at the end. One more runs than there are processors, since some of them mostly wait.
for item in "$@"; do
    printf '%s %s\n' "$(awk -v name="$(name_of "$item")" '$1 == name { seconds = $2 } END { print seconds + 0 }' tests/budgets)" "$item"
done | sort -k1,1 -rn -s | cut -d' ' -f2- | xargs -P "${JOBS:-$(($(getconf _NPROCESSORS_ONLN) + 1))}" -n 1 sh "$0" --one "$build"
echo "-- the slowest:"
find "$build/tests" -name '*.log.count' -exec cat {} + | sort -k6,6 -rn | awk 'NR <= 10 { printf "%-28s %6s s (processor %6s s)\n", $4, $6, $7 }'
find "$build/tests" -name '*.log.count' -exec cat {} + | awk '{ passed += $1; failed += $2; skipped += $3 }
    END { printf "%d passed, %d failed%s\n", passed, failed, skipped ? ", " skipped " skipped" : ""; exit failed > 0 || passed == 0 }'
