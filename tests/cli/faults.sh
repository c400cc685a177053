#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Memory that runs out: each command is run again and again, and another one of its allocations fails each time: alone, or with all that follow it.
# Right is the result of the undisturbed run with exit code 0, or exit code 5 with words and no part of a result. Wrong is everything else.
#   tests/cli/faults.sh TUNE [SCENARIO...]    POINTS=n: places a scenario (12); POINTS=all: each one
# libgomp, OpenBLAS and the C++ library end a program by themselves when they find no memory; such a run is counted apart.
set -u
tune=$1
shift
points=${POINTS:-12}
shim=$(cd "$(dirname "$tune")" && pwd)/fault.so
[ -f "$shim" ] || { echo "[  SKIPPED ] 1 test: no $shim (make $shim)" && exit 0; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive MALLOC_ARENA_MAX=1
demo=recipes/demo
awk -v kind=train -f $demo/make_rows.awk $demo/words.txt | head -n 12 >"$work/rows.jsonl"
awk '{ printf "{\"text\": \"row %d: \\\"%s\\\" \\u00e9\"}\n", NR, $1 }' $demo/words.txt | head -n 20 >"$work/texts.jsonl"
"$tune" init $demo/model -o "$work/model" --quiet || exit 1

# The program, with the shim where a fault is asked for: the shell itself goes without.
fault= count=
disturbed() { if [ -n "$fault$count" ]; then timeout -s KILL 20 env FAULT_ALLOC="$fault" FAULT_COUNT="$count" LD_PRELOAD="$shim" "$tune" "$@"; else "$tune" "$@"; fi; }
# What each scenario runs; results go to standard output and to $out.
sft() { disturbed sft --quiet model.path="$work/model" data.train="$work/rows.jsonl" output="$out" train.batch_size=2 train.max_steps=2 "$@"; }
scenario() {
    case $1 in
    tokenize) disturbed tokenize "$work/model" "$work/texts.jsonl" ;;
    check) disturbed data check data.train="$work/rows.jsonl" model.path="$work/model" ;;
    generate) disturbed generate "$work/model" --prompt 'abc' --temperature 0 --max-new-tokens 4 ;;
    merge) disturbed merge "$work/model" "$work/adapter/adapter" -o "$out" ;;
    sft) sft ;;
    lora) sft lora.rank=2 lora.alpha=4 ;;
    grpo) disturbed rl --quiet rl.algorithm=grpo model.path="$work/model" data.train="$work/rows.jsonl" output="$out" reward.type=length reward.target=4 train.max_steps=1 \
        rl.prompts_per_step=2 rl.num_generations=2 generate.max_new_tokens=4 ;;
    filter) disturbed data filter "$work/rows.jsonl" -o "$out" ;;
    inspect) disturbed inspect "$work/model" ;;
    render) disturbed tokenize "$work/model" --chat "$work/rows.jsonl" --chat-template chatml ;;
    esac
}
out=$work/adapter scenario lora >/dev/null 2>"$work/err" || { cat "$work/err" && exit 1; }

# Files that carry a result: a run's own record holds times.
result() { find "$out" -type f \( -name '*.safetensors' -o -name 'config.json' -o -name 'tokenizer*.json' -o -name "$(basename "$out")" \) 2>/dev/null |
    sort | while read -r file; do echo "${file#"$out"}" && cat "$file"; done; }
# The other libraries' own ends.
theirs() { grep -qE 'libgomp|OpenBLAS|terminate called|error while loading|cannot allocate memory in static TLS' "$work/err"; }

judge() { # CODE: prints what is wrong
    if [ "$1" = 0 ]; then
        cmp -s "$work/stdout" "$work/right.stdout" || { echo "other output with exit code 0" && return; }
        result | cmp -s - "$work/right" || echo "other files with exit code 0"
    elif [ "$1" = 5 ]; then
        grep -qE '^tune: error: .' "$work/err" || { echo "no words" && return; }
        [ -s "$work/stdout" ] && ! head -c "$(wc -c <"$work/stdout")" "$work/right.stdout" | cmp -s - "$work/stdout" && echo "wrong output before it ended"
        [ "$kind" = folder ] && [ -e "$out" ] && echo "half a result stays"
    else
        echo "exit code $1"
    fi
}

run_all() { # NAME: all its points
    name=$1 wrong=0 apart=0
    kind=none
    case $name in merge | filter) kind=folder ;; esac
    out=$work/out.$name
    count=$work/count fault=
    scenario "$name" >"$work/right.stdout" 2>"$work/err" || { cat "$work/err" && echo "$name fails undisturbed" && failed=$((failed + 1)) && return; }
    result >"$work/right"
    n=$(cat "$work/count")
    places=$([ "$points" = all ] && seq "$n" || awk -v n="$n" -v k="$points" 'BEGIN { for (i = 0; i < k; i++) print 1 + int((i + 0.5) * n / k) }')
    for place in $places; do
        for after in '' -; do
            rm -rf "$out"
            count='' fault=$place$after
            scenario "$name" >"$work/stdout" 2>"$work/err"
            said=$(judge $?)
            [ -z "$said" ] && continue
            if theirs; then apart=$((apart + 1)) && continue; fi
            wrong=$((wrong + 1))
            echo "$name, allocation $place$after of $n: $said: $(head -c 300 "$work/err" | tr '\n' ' ')"
        done
    done
    rm -rf "$out"
    fault='' count=''
    if [ $wrong = 0 ]; then passed=$((passed + 1)) && echo "[       OK ] $name: $n allocations, $apart ends of other libraries"; else failed=$((failed + 1)) && echo "[  FAILED  ] $name: $wrong"; fi
}
[ $# -gt 0 ] || set -- tokenize check generate merge sft
for name in "$@"; do run_all "$name"; done
[ $passed -gt 0 ] && echo "[  PASSED  ] $passed test(s)."
[ $failed -gt 0 ] && echo "[  FAILED  ] $failed test(s)."
[ $failed = 0 ]
