#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The table of docs/quantize.md: quantises a model with each method, compares it with the original on rows of GSM8K that calibration does not see, and
# measures how fast it answers.
#   sh tests/bench/quantize_table.sh MODEL ROWS.jsonl [CALIBRATION_ROWS [EVALUATION_ROWS]]
# TUNE: the program (./tune). OUT: a folder for the models (a new one in /tmp, removed at the end); what a call before this one made in it is not
# made again. ONLY: names of lines, such as "gptq4 awq4" (all). SPEED=0 does not measure tokens/s, which other work on the machine disturbs; a
# later call with the same OUT and without SPEED=0 measures only that.
set -eu
model=$1 rows=$2 n=${3:-128} n_eval=${4:-32} tune=${TUNE:-./tune}
out=${OUT:-$(mktemp -d)}
[ "${OUT:-}" ] || trap 'rm -rf "$out"' EXIT
mkdir -p "$out"
head -n "$n" "$rows" >"$out/rows.jsonl"
tail -n "$n_eval" "$rows" >"$out/eval.jsonl"

number() { sed 's/"layers": .*//' "$1" | sed -n "s/.*\"$2\": \\([-+.e0-9]*\\).*/\\1/p"; }
seconds() { # for so many new tokens
    begin=$(date +%s.%N)
    "$tune" generate "$1" --prompt 'Natalia sold clips to 48 of her friends.' --greedy --max-new-tokens "$2" --logit-bias 2=-100 --quiet >/dev/null 2>&1
    date +%s.%N | awk -v begin="$begin" '{ print $1 - begin }'
}
speed() { # tokens a second after the first ones: of the model, named so
    if [ "${SPEED:-1}" != 0 ]; then
        few=$(seconds "$1" 8) many=$(seconds "$1" 72)
        awk -v few="$few" -v many="$many" 'BEGIN { printf "%.0f", 64 / (many - few) }' >"$out/$2.speed"
    fi
    cat "$out/$2.speed" 2>/dev/null || :
}
make() { # a model with these options, and what it cost
    begin=$(date +%s) name=$1
    shift
    [ "$2" = rtn ] || set -- "$@" --rows "$out/rows.jsonl"
    "$tune" quantize "$model" -o "$out/$name" "$@" --force --eval "$out/eval.jsonl" --json --quiet >"$out/$name.new" 2>"$out/$name.log"
    echo $(($(date +%s) - begin)) >"$out/$name.seconds"
    mv "$out/$name.new" "$out/$name.json"
}

echo '| method | bits a weight | KL, nats | same top token | loss | size | tokens/s | time |'
echo '|---|---|---|---|---|---|---|---|'
first=yes
while read -r name options; do
    case " ${ONLY:-$name} " in *" $name "*) ;; *) continue ;; esac
    # shellcheck disable=SC2086
    [ -f "$out/$name.json" ] || make "$name" $options </dev/null
    made=$out/$name.json
    [ "$first" = no ] || printf '| original (bf16) | 16 | 0 | 100 %% | %.4f | %.0f MB | %s | |\n' "$(number "$made" original_loss)" \
        "$(number "$made" original_bytes | awk '{ print $1 / 1e6 }')" "$(speed "$model" original </dev/null)"
    first=no
    printf '| `%s` | %.2f | %.4f | %.1f %% | %.4f | %.0f MB | %s | %s s |\n' "$options" "$(number "$made" bits_per_weight)" \
        "$(number "$made" kl)" "$(number "$made" top1 | awk '{ print 100 * $1 }')" "$(number "$made" loss)" \
        "$(number "$made" bytes | awk '{ print $1 / 1e6 }')" "$(speed "$out/$name" "$name" </dev/null)" "$(cat "$out/$name.seconds")"
done <<'LIST'
rtn4 --method rtn
gptq4 --method gptq
gptq4-act-order --method gptq --act-order
rtn4-asym --method rtn --asym
awq4 --method awq
gptq4-asym --method gptq --asym
rtn3 --method rtn --bits 3
gptq3 --method gptq --bits 3
gptq3-act-order --method gptq --bits 3 --act-order
rtn3-asym --method rtn --bits 3 --asym
awq3 --method awq --bits 3
rtn8 --method rtn --bits 8
int8 --method int8
int8-auto --method int8 --alpha auto
int8-entropy --method int8 --calibrate entropy
gptq4-mean_var --method gptq --bias-correction mean_var
LIST
