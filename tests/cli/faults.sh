#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs each scenario of tests/faults/scenarios.sh again and again. Each time another call fails, or the process is killed or the power is cut at another
# point. docs/faults.md says which results are right, and explains the columns.
#   tests/cli/faults.sh TUNE [SCENARIO...]
# POINTS=n: n points of each scenario and kind; POINTS=all: all. KINDS="alloc EIO ...": only these kinds. ROWS=FILE: appends the rows of the table to FILE.
# PLACES="17 23-": only these points, with POINTS=1 and one kind. Without POINTS: a sample of all points, which takes seconds.
set -u
tune=$1
shift
build=$(cd "$(dirname "$tune")" && pwd)
tune=$build/$(basename "$tune")
shim=$build/fault.so
[ -f "$shim" ] && [ -x "$build/fault-power" ] || { echo "[  SKIPPED ] 1 test: no $shim: sanitizers have an allocator of their own, other systems no such shim" && exit 0; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"; [ -z "${server:-}" ] || kill "$server"' EXIT
trap 'exit 130' INT TERM
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive MALLOC_ARENA_MAX=1
. tests/faults/scenarios.sh
kinds=${KINDS:-alloc EIO ENOSPC EMFILE EINTR short kill torn ext4-lost ext4-half ext4-zero ext4-early posix-none posix-some}
kind_of() { for s in $SCENARIOS; do [ "${s%:*}" = "$1" ] && echo "${s#*:}"; done; }
prepare || { echo "[  FAILED  ] 1 test(s): nothing to disturb" && exit 1; }

# ---- one run ----

fault='' log='' count=''
t() {
    case $fault in
    '') set -- "$tune" "$@" ;;
    none) set -- env FAULT_COUNT="$count" FAULT_STACKS="$count.stacks" FAULT_ROOT="$disk" FAULT_LOG="$log" LD_PRELOAD="$shim" "$tune" "$@" ;;
    alloc:*) set -- env FAULT_ALLOC="${fault#alloc:}" FAULT_FAILED="$work/failed" LD_PRELOAD="$shim" "$tune" "$@" ;;
    *) set -- env FAULT_FILES="$fault" LD_PRELOAD="$shim" "$tune" "$@" ;;
    esac
    timeout -s KILL 20 "$@"
}
run() { # FAULT AGAIN: sets $code, the exit code; the output is in $work/stdout and $work/err
    fault=$1 again=$2
    rm -f "$work/failed"
    scenario "$name" >"$work/stdout" 2>"$work/err"
    code=$?
}
begin() { rm -rf "$disk" && mkdir "$disk" && cp -R "$base/." "$disk"; }
# Prints the parts of a result that are compared: not times, and not the files for people. A complete file is one line.
record='log.txt|report.html|events\..*|started.json|stopped.json|finished.json|extended.json|dataset_card.md|.*\.tune-lock'
temporary='/\.[^/]*(tmp-|tune-(partial|old|rows))' # an empty lock may stay
result() {
    (cd "$disk" && find . -type f | grep -vE "/($record)$|/checkpoints/|metrics.jsonl$|/out\.cache/|$temporary" | LC_ALL=C sort | xargs -r cksum | if [ "$name" = replace ]; then sed 's|/out\.[0-9]*/|/out/|' | LC_ALL=C sort -u; else cat; fi
        find . -name metrics.jsonl | LC_ALL=C sort | while read -r file; do
            echo "$file" && sed -E 's/, "[a-z_]*(seconds|per_second|memory|bytes)[a-z_]*": *[^,}]*//g' "$file"
        done) 2>/dev/null
    [ "$kind" = text ] && cat "$work/stdout"
}
same() { result | cmp -s - "$work/right.$name"; }
as_before() { result | cmp -s - "$work/before.$name"; }
leftovers() { find "$disk" | grep -v '/out\.cache/' | grep -qE "$temporary"; }
# Whether a library ended the program by itself: some print a message; others crash, or recurse without end, after their own allocation failed.
theirs() {
    grep -qE 'libgomp|OpenBLAS|terminate called|libgcc_s|error while loading|cannot allocate memory in static TLS|could not create a primitive|^Operating system error' "$work/err" ||
        { [ $code -gt 128 ] && [ -f "$work/failed" ] && grep -qE '^(libgfortran|libdnnl|libopenblas)' "$work/failed"; }
}

# ---- the outcome of a point: a word in $outcome, and the reason in $why ----

ends() { outcome=$1 why=$2; }

# After a failed call: the result is right, or there is an error with exit code 5 and no part of a result; --resume gives the same bytes.
judge_error() {
    if [ $code = 0 ]; then
        if same; then ends unharmed ''; else ends wrong 'another result with exit code 0'; fi
        if [ $outcome != wrong ] && leftovers && ! grep -qE 'remains as|cannot remove' "$work/err"; then
            case $kind:$place in
            run:*-) goes_on ;; # where nothing works any more nothing can be removed: the next one does it
            *) ends half 'temporary files stay, and nothing says so' ;;
            esac
        fi
        return
    fi
    if theirs; then ends theirs ''; return; fi
    if [ $code -gt 128 ] && [ $code != 130 ]; then ends abort "exit code $code"; return; fi
    ends message ''
    grep -qE '^tune: error: .' "$work/err" || ends code "exit code $code without words"
    [ $code = 5 ] || ends code "exit code $code"
    case $f in EINTR* | short*) ends code "exit code $code where no error is" ;; esac
    case $kind in
    text) head -c "$(wc -c <"$work/stdout")" "$work/right.stdout" | cmp -s - "$work/stdout" || ends wrong 'other output before the error' ;;
    file | folder)
        case $place in
        *-) remains leave && made_again ;; # if every later call fails, the command cannot remove its files: the next command does
        *) remains ;;
        esac || ends half 'a part of a result stays'
        ;;
    run) goes_on ;;
    esac
}

# The output is missing, as before, or complete. For files this holds for each file; a .partial file has complete lines.
remains() {
    find "$disk" -name '*.partial' -exec rm -f {} +
    [ "${1:-}" = leave ] || ! leftovers || return 1
    as_before || same && return 0
    [ $kind = file ] || return 1
    result >"$work/now" && LC_ALL=C sort "$work/before.$name" "$work/right.$name" | LC_ALL=C comm -23 "$work/now" - | grep -q . && return 1
    return 0
}

# Resumes without a fault, and compares the bytes with those of the uninterrupted run.
goes_on() {
    cp "$work/err" "$work/err.before"
    run '' --resume
    if [ $code != 0 ]; then
        ends lost "cannot go on: $(head -c 200 "$work/err" | tr '\n' ' ')"
    elif ! same; then
        ends lost 'goes on to other bytes'
    elif leftovers; then
        ends half 'temporary files stay after --resume'
    fi
    cp "$work/err.before" "$work/err"
}

made_again() {
    cp "$work/err" "$work/err.before"
    run '' ''
    if [ $code != 0 ] && ! { [ $code = 3 ] && same; }; then # 3: the output exists and is not replaced
        ends lost "cannot be made again: $(head -c 200 "$work/err" | tr '\n' ' ')"
    elif ! same; then
        ends lost 'made again it is another one'
    elif leftovers; then
        ends half 'temporary files stay'
    fi
    cp "$work/err.before" "$work/err"
}

judge_end() { # after a kill or a power cut
    ends unharmed ''
    case $kind in
    run) goes_on ;;
    file | folder)
        remains leave || ends half 'a part of a result is there'
        made_again
        ;;
    esac
}

# ---- all points of a scenario ----

try() { # KIND PLACE
    f=$1 place=$2
    begin
    case $f in
    ext4-* | posix-*)
        rm -rf "$disk" && "$build/fault-power" "$work/log" "$base" "$disk" "$2" "$f" || { ends abort 'the state after the cut cannot be made' && return; }
        [ "$2" -le "$operations" ] || same || { ends lost 'was finished, and is gone' && return; }
        judge_end
        ;;
    kill | torn)
        run "$f:$2" ''
        [ $code = 137 ] || [ $code = 0 ] || { ends abort "exit code $code" && return; }
        judge_end
        ;;
    *)
        run "$f:$2" ''
        judge_error
        ;;
    esac
}

places() { # KIND: prints the points to try
    [ -z "${PLACES:-}" ] || { printf '%s\n' $PLACES && return; }
    case $kind:$1 in
    text:kill | text:torn | text:ext4-* | text:posix-*) n=0 ;; # no files that could be left
    *:ext4-* | *:posix-*) n=$((operations + 1)) ;;
    *) n=$(sed -n "s/^$1 //p" "$work/count") ;;
    esac
    if [ "$points" = all ] && [ "$1" = alloc ]; then
        cat "$count.stacks"
    elif [ "$points" = all ] || [ "$points" = every ]; then
        seq "$n"
    else
        awk -v n="$n" -v k="$points" -v turn="$turn" 'BEGIN { for (i = 0; i < k && i < n; i++) print 1 + int((i + (0.5 + turn * 0.618) % 1) * n / (k < n ? k : n)) }'
    fi | case $1 in
    alloc | EIO | ENOSPC | EMFILE) if [ "$points" = all ] || [ "$points" = every ]; then awk '{ print; print $0 "-" }'; else awk -v turn="$turn" '{ print $0 ((NR + turn) % 2 ? "" : "-") }'; fi ;;
    EINTR) awk -v spread="$spread" '!spread { print } END { if (NR) print "1~" }' ;;
    short) awk -v spread="$spread" '!spread { print } END { if (NR) print "1-" }' ;;
    *) cat ;;
    esac
}

disturb() { # KIND: runs it at each point and prints a row of the table
    n_points=0 unharmed=0 message=0 wrong=0 code_=0 half=0 lost=0 abort=0 theirs=0
    for place in $(places "$1"); do
        n_points=$((n_points + 1))
        try "$1" "$place"
        case $outcome in
        unharmed) unharmed=$((unharmed + 1)) && continue ;;
        message) message=$((message + 1)) && continue ;;
        theirs) theirs=$((theirs + 1)) && continue ;;
        code) code_=$((code_ + 1)) ;;
        wrong) wrong=$((wrong + 1)) ;;
        half) half=$((half + 1)) ;;
        lost) lost=$((lost + 1)) ;;
        abort) abort=$((abort + 1)) ;;
        esac
        bad=$((bad + 1))
        echo "$name, $1 $place: $outcome: $why: $(head -c 300 "$work/err" | tr '\n' ' ')"
    done
    [ $n_points = 0 ] || printf '%-10s %-10s %6d %8d %7d %6d %5d %5d %5d %5d %6d\n' "$name" "$1" $n_points $unharmed $message $wrong $code_ $half $lost $abort $theirs | tee -a "${ROWS:-/dev/null}"
}

# In a sample, a scenario has every fourth kind, and the next scenario has others. All have EINTR, of which one run shows all points.
chosen() {
    i=$turn
    for f in "$@"; do
        [ "$f" = EINTR ] || i=$((i + 1))
        [ -n "$spread" ] && [ $((i % 4)) != 0 ] && [ "$f" != EINTR ] || echo "$f"
    done
}

all_of() { # SCENARIO KIND...
    name=$1 kind=$(kind_of "$1") disk=$work/disk base=$work/base bad=0
    out=$disk/out log=$work/log count=$work/count
    shift
    rm -rf "$base" "$disk" && mkdir "$disk" && { before "$name" && mv "$disk" "$base"; } || { echo "[  FAILED  ] $name: cannot be prepared" && failed=$((failed + 1)) && return; }
    begin && : >"$work/stdout" && result >"$work/before.$name"
    run none ''
    if grep -q "no library 'onednn'" "$work/err"; then echo "[  SKIPPED ] 1 test: $name: this build has no oneDNN" && return; fi
    if [ $code != 0 ]; then cat "$work/err" && echo "[  FAILED  ] $name: exit code $code undisturbed" && failed=$((failed + 1)) && return; fi
    cp "$work/stdout" "$work/right.stdout" && result >"$work/right.$name"
    [ -z "${COUNTS:-}" ] || { echo "$name $(tr "\n" " " <"$count") stacks $(wc -l <"$count.stacks")" && return; }
    operations=$("$build/fault-power" "$log" "$base" - 0 count)
    for f in $(chosen "$@"); do disturb "$f"; done
    rm -rf "$disk" "$base"
    if [ $bad = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

passed=0 failed=0 turn=0
points=${POINTS:-1} spread=${POINTS:-yes}
[ "$spread" = yes ] || spread=''
[ $# -gt 0 ] || set -- $(for s in $SCENARIOS; do echo "${s%:*}"; done)
"$build/fault-teacher" "$work/port" &
server=$!
while ! grep -q . "$work/port" 2>/dev/null; do sleep 0.01; done
port=$(cat "$work/port")
[ -n "${QUIET_HEAD:-}" ] || printf '%-10s %-10s %6s %8s %7s %6s %5s %5s %5s %5s %6s\n' scenario kind points unharmed message wrong code half lost abort theirs
for s in "$@"; do
    turn=$((turn + 1))
    all_of "$s" $kinds
done
[ $passed -gt 0 ] && echo "[  PASSED  ] $passed test(s)."
[ $failed -gt 0 ] && echo "[  FAILED  ] $failed test(s)."
[ $failed = 0 ]
