#!/bin/sh
# Runs test programs and the command-line cases, several at a time, and sums what they say.
#   tests/run.sh BUILD PROGRAM...      JOBS=n: how many at once; the output of each stays in BUILD/tests/NAME.log
set -u
if [ "$1" = --one ]; then # one program: its output into a file, its counts into another
    build=$2 program=$3 name=$(echo "$3" | sed "s|^$2/||; s|^tests/||; s|/|_|g; s|\.sh$||") limit=
    log=$build/tests/$name.log
    command -v timeout >/dev/null && limit="timeout ${TEST_SECONDS:-1200}"
    case $program in
    *.sh) $limit sh "$program" "$build/tune" tests/cli/*.case >"$log" 2>&1 ;;
    *) $limit "$program" >"$log" 2>&1 ;;
    esac
    code=$?
    # cmocka's totals. A program that dies, or says nothing, has failed even if all it printed before was good.
    awk -v code=$code -v name="$name" '
        /^\[  PASSED  \] [0-9]+ test/ { passed += $4; spoke = 1 }
        /^\[  FAILED  \] [0-9]+ test/ { failed += $4; spoke = 1 }
        /^\[  SKIPPED \] [0-9]+ test/ { skipped += $4; spoke = 1 }
        END { if ((code != 0 && failed == 0) || !spoke) failed += 1
              printf "%d %d %d %s %d\n", passed, failed, skipped, name, code }' "$log" >"$build/tests/$name.count"
    read -r passed failed skipped name code <"$build/tests/$name.count"
    [ "$failed" = 0 ] || { printf -- '---- %s, exit code %s:\n' "$name" "$code"; tail -n 60 "$log"; }
    printf '%-24s %s passed, %s failed, %s skipped\n' "$name" "$passed" "$failed" "$skipped"
    exit 0
fi
build=$1
shift
mkdir -p "$build/tests"
rm -f "$build"/tests/*.count
export TUNE="$build/tune" # what tests that run the program itself call
# Several programs share the processor: waiting threads must not spin. Leaks are looked for, libraries without instrumentation are not judged.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
export UBSAN_OPTIONS="print_stacktrace=1" TSAN_OPTIONS="ignore_noninstrumented_modules=1" LSAN_OPTIONS="suppressions=tests/lsan.supp:print_suppressions=0"
# What is written whole or not at all is synced to the disk each time: in memory, where there is room and scripts may be run.
if [ -z "${TMPDIR:-}" ] && [ "$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')" -gt 4000000 ] 2>/dev/null &&
    probe=$(mktemp /dev/shm/tune-test-XXXXXX 2>/dev/null); then
    printf '#!/bin/sh\n' >"$probe" && chmod +x "$probe" && "$probe" 2>/dev/null && export TMPDIR=/dev/shm
    rm -f "$probe"
fi
# What takes longest begins first, or all others would wait for it in the end.
[ -x "$build/tune" ] && ls tests/cli/*.case >/dev/null 2>&1 && set -- tests/cli/run.sh "$@"
# Under the thread sanitizer, where everything is some twenty times slower, what takes long and starts no thread of another kind is left out.
case $build in *tsan*) ;; *) [ -x "$build/tune" ] && set -- tests/cli/resume.sh "$@" ;; esac
set -- "$@" tests/cli/self_test.sh
printf '%s\n' "$@" | xargs -P "${JOBS:-$(getconf _NPROCESSORS_ONLN)}" -n 1 sh "$0" --one "$build"
cat "$build"/tests/*.count | awk '{ passed += $1; failed += $2; skipped += $3 }
    END { printf "%d passed, %d failed%s\n", passed, failed, skipped ? ", " skipped " skipped" : ""; exit failed > 0 || passed == 0 }'
