#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Seeds -> rows -> adapter -> questions about words that were not among the seeds.
#   sh recipes/synth_demo/synth_demo.sh ./tune [OUT]
set -eu
tune=${1:-./tune}
here=$(dirname "$0")
out=${2:-runs/synth-demo}
rm -rf "$out"
mkdir -p "$out"
demo=$here/../demo
# the demo's questions, without their answers; and those about other words, with theirs, to be asked at the end
awk -v kind=train -f "$demo/make_rows.awk" "$demo/words.txt" | sed 's/, "completion".*/}/' > "$out/seeds.jsonl"
awk -v kind=test -f "$demo/make_rows.awk" "$demo/words.txt" > "$out/test.jsonl"
"$tune" eval "$demo/model" --data "$out/test.jsonl" --exact-match --json --quiet > "$out/before.json"
"$tune" data synth "$here/synth.yaml" "synth.seeds=$out/seeds.jsonl" "synth.teacher={model: $demo/model, max_new_tokens: 16, greedy: true}" "synth.prompts={answer: $here/answer.jinja}" "output=$out/rows"
"$tune" sft "$demo/sft.yaml" "model.path=$demo/model" "data.train=$out/rows/rows.jsonl" "output=$out/sft"
"$tune" eval "$demo/model" --adapter "$out/sft/adapter" --data "$out/test.jsonl" --exact-match --json --quiet > "$out/after.json"
for name in before after; do sed -n "s/.*\"exact_match\": *\([0-9.eE+-]*\).*/$name: \1 of the held-out answers are exactly right/p" "$out/$name.json"; done
