#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The table of docs/qlora.md: the same recipe on one model without quantisation and with each form of model.quantize, in turn. A line a form: bits of
# a weight of the whole base, memory planned and at the peak of the first run (which quantises), held-out loss before and after training, and the rate
# of tokens as a ratio to that without quantisation. Rates of a busy machine are not comparable; memory and losses are.
#
#     sh tests/bench/qlora_forms.sh MODEL_DIR TRAIN.jsonl EVAL.jsonl OUTPUT_DIR [SETTING...]
#
# SETTING: of the recipe, such as train.max_steps=24. TUNE: the program (./tune). FORMS: the forms. OUTPUT_DIR is made.
set -eu
model=$1 train=$2 eval=$3 out=$4
shift 4
tune=${TUNE:-./tune}
mkdir -p "$out"
number() { sed -n "s/.*\"$1\": \\([-0-9.e+]*\\).*/\\1/p" "$2"; }
plain=
for form in ${FORMS:-none q8_0 int8 q6_k nf4 q4_k q4_0 fp4}; do
    settings="model.path=$model model.quantize=$form data.train=$train data.eval=$eval train.save_every=0 train.eval_every=1000000"
    # shellcheck disable=SC2086 # settings are words
    "$tune" sft recipes/sft_qlora.yaml $settings "$@" output="$out/$form/run" --quiet 2>"$out/$form.log"
    # shellcheck disable=SC2086
    "$tune" sft recipes/sft_qlora.yaml $settings "$@" output="$out/$form/plan" --dry-run --json --quiet >"$out/$form.plan"
    base=$model
    [ "$form" = none ] || base=$(echo "$out/$form"/*-"$form"-*)
    bits=$("$tune" inspect "$base" | sed -n 's/.*; \([0-9.]*\) bits a weight$/\1/p')
    "$tune" eval "$base" --data "$eval" --as text --json --quiet >"$out/$form.before"
    # The median of the steps after the first, which also reads the weights.
    rate=$(number tokens_per_second "$out/$form/run/metrics.jsonl" | sed 1d | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }')
    plain=${plain:-$rate}
    awk -v form="$form" -v bits="${bits:-16}" -v planned="$(sed 's/.*"memory": {"total": \([0-9]*\).*/\1/' "$out/$form.plan")" \
        -v peak="$(number peak_rss_bytes "$out/$form/run/finished.json")" -v before="$(number loss "$out/$form.before")" \
        -v after="$(number eval_loss "$out/$form/run/metrics.jsonl" | tail -n 1)" -v rate="$rate" -v plain="$plain" 'BEGIN {
            printf "| `%s` | %s | %.0f | %.0f | %.4f | %.4f | %.2f |\n", form, bits, planned / 1048576, peak / 1048576, before, after, rate / plain }'
done
