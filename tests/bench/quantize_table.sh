#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The table of docs/quantize.md: quantises a model with each method, compares it with the original on rows of GSM8K that calibration does not see, and
# measures how fast it answers.
#   sh tests/bench/quantize_table.sh MODEL ROWS.jsonl [CALIBRATION_ROWS [EVALUATION_ROWS]]
# TUNE: the program (./tune). OUT: a folder for the models (a new one in /tmp, removed at the end).
set -eu
model=$1 rows=$2 n=${3:-32} n_eval=${4:-16} tune=${TUNE:-./tune}
out=${OUT:-$(mktemp -d)}
[ "${OUT:-}" ] || trap 'rm -rf "$out"' EXIT
head -n "$n" "$rows" >"$out/rows.jsonl"
tail -n "$n_eval" "$rows" >"$out/eval.jsonl"

number() { sed "s/.*\"$2\": \\([-+.e0-9]*\\).*/\\1/" "$1"; }
seconds() { # for so many new tokens
    begin=$(date +%s.%N)
    "$tune" generate "$1" --prompt 'Natalia sold clips to 48 of her friends.' --greedy --max-new-tokens "$2" --logit-bias 2=-100 --quiet >/dev/null 2>&1
    date +%s.%N | awk -v begin="$begin" '{ print $1 - begin }'
}
speed() { # tokens a second after the first ones
    few=$(seconds "$1" 8) many=$(seconds "$1" 72)
    awk -v few="$few" -v many="$many" 'BEGIN { printf "%.0f", 64 / (many - few) }'
}

echo '| method | bits a weight | KL, nats | same top token | loss | size | tokens/s | time |'
echo '|---|---|---|---|---|---|---|---|'
while read -r name options; do
    begin=$(date +%s)
    # shellcheck disable=SC2086
    "$tune" quantize "$model" -o "$out/$name" $options --rows "$out/rows.jsonl" --eval "$out/eval.jsonl" --json --quiet >"$out/$name.json" 2>"$out/$name.log"
    took=$(($(date +%s) - begin))
    [ "$name" != rtn8 ] || printf '| original (bf16) | 16 | 0 | 100 %% | %.4f | %.0f MB | %s | |\n' "$(number "$out/$name.json" original_loss)" \
        "$(number "$out/$name.json" original_bytes | awk '{ print $1 / 1e6 }')" "$(speed "$model")"
    printf '| %s | %.2f | %.4f | %.1f %% | %.4f | %.0f MB | %s | %s s |\n' "$name" "$(number "$out/$name.json" bits_per_weight)" \
        "$(number "$out/$name.json" kl)" "$(number "$out/$name.json" top1 | awk '{ print 100 * $1 }')" "$(number "$out/$name.json" loss)" \
        "$(number "$out/$name.json" bytes | awk '{ print $1 / 1e6 }')" "$(speed "$out/$name")" "$took"
done <<'LIST'
rtn8 --method rtn --bits 8
int8 --method int8
int8-entropy --method int8 --calibrate entropy
rtn4 --method rtn
gptq4 --method gptq
gptq4-act-order --method gptq --act-order
gptq4-mean_var --method gptq --bias-correction mean_var
awq4 --method awq
rtn3 --method rtn --bits 3
gptq3 --method gptq --bits 3
awq3 --method awq --bits 3
LIST
