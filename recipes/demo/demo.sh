#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A small example: a tiny model learns to follow plain English, first from answers, then from rewards. All inputs are in this folder, all results in runs/demo.
#   make demo        or        sh recipes/demo/demo.sh ./tune
set -eu
tune=${1:-./tune}
here=$(dirname "$0")
out=${2:-runs/demo}
rm -rf "$out"
mkdir -p "$out"

bold='' plain=''
if [ -t 1 ] && [ "${TERM:-dumb}" != dumb ] && [ -z "${NO_COLOR:-}" ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); fi
say() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
# Prints a command as a user would type it, then runs it.
show() {
    printf '$'
    for word in "$@"; do case $word in *[\ \'\<]*) printf ' "%s"' "$word" ;; *) printf ' %s' "$word" ;; esac; done
    printf '\n'
}
run() { show "$@"; "$@"; }
# "exact_match": 0.12 of a JSON object, as a percentage
percent() { sed -n 's/.*"exact_match": *\([0-9.eE+-]*\).*/\1/p' "$1" | awk '{ printf "%.1f %%", 100 * $1 }'; }
check() { # NAME MODEL [ADAPTER OPTIONS]
    name=$1 model=$2
    shift 2
    show "$tune" eval "$model" "$@" --data "$out/test.jsonl" --exact-match
    "$tune" eval "$model" "$@" --data "$out/test.jsonl" --exact-match --json --quiet > "$out/$name.json"
}

# "key": 0.12345 of the last line that has it, as 0.12
number() { sed -n "s/.*\"$2\": *\([0-9.eE+-]*\).*/\1/p" "$1" | tail -n 1 | awk '{ printf "%.2f", $1 }'; }

say '1. Rows: 344 words to learn from, 85 others to be asked about'
for kind in train test pairs test_pairs; do awk -v kind=$kind -f "$here/make_rows.awk" "$here/words.txt" > "$out/$kind.jsonl"; done
head -n 2 "$out/train.jsonl"

say '2. Before training: the model has only seen invented words in a terse notation'
check before "$here/model"
run "$tune" generate "$here/model" --prompt "< 'pirate' =" --greedy --max-new-tokens 12
run "$tune" generate "$here/model" --prompt "Spell 'pirate' backwards." --greedy --max-new-tokens 12

say '3. LoRA fine-tuning on the questions'
run "$tune" sft "$here/sft.yaml" "model.path=$here/model" "data.train=$out/train.jsonl" "output=$out/sft"
check adapter "$here/model" --adapter "$out/sft/adapter"

say '4. Merging the adapter into the model'
run "$tune" merge "$here/model" "$out/sft/adapter" -o "$out/merged"
check merged "$out/merged"

say '5. Talking to the result'
for question in "Spell 'pirate' backwards." "Please shout 'pepper'." "How many letters are in 'violin'?"; do
    printf '%s  ' "$question"
    "$tune" generate "$out/merged" --prompt "$question" --greedy --max-new-tokens 12
done

say '6. For rewards: a model that has seen few answers (40 steps of the same fine-tuning)'
run "$tune" sft "$here/sft.yaml" "model.path=$here/model" "data.train=$out/train.jsonl" "output=$out/few" train.max_steps=40
run "$tune" merge "$here/model" "$out/few/adapter" -o "$out/start"
check start "$out/start"

say '7. Rewards: it answers, and learns which answers were right (GRPO)'
run "$tune" rl "$here/rl.yaml" "model.path=$out/start" "data.train=$out/train.jsonl" "data.eval=$out/test.jsonl" "output=$out/rl"
run "$tune" merge "$out/start" "$out/rl/adapter" -o "$out/learned"
check learned "$out/learned"

say '8. Preferences: a right and a wrong answer to each question (DPO)'
head -n 2 "$out/pairs.jsonl"
run "$tune" rl "$here/dpo.yaml" "model.path=$out/start" "data.train=$out/pairs.jsonl" "data.eval=$out/test_pairs.jsonl" "output=$out/dpo"

say '9. A reward model from such pairs, and PPO with its rewards'
run "$tune" generate "$out/start" --input "$out/train.jsonl" -n 2 --temperature 1 --max-new-tokens 12 --quiet -o "$out/samples.jsonl"
awk -v n=2 -f "$here/make_pairs.awk" "$out/train.jsonl" "$out/samples.jsonl" > "$out/own_pairs.jsonl"
run "$tune" reward "$here/reward.yaml" "model.path=$out/merged" "data.train=[$out/pairs.jsonl,$out/own_pairs.jsonl]" "data.eval=$out/test_pairs.jsonl" "output=$out/reward"
run "$tune" rl "$here/ppo.yaml" "model.path=$out/start" "data.train=$out/train.jsonl" "data.eval=$out/test.jsonl" "reward=[{type: model, model: $out/reward}]" "output=$out/ppo"

say 'Exactly right answers, on words that are not in the training rows'
printf '  %-28s %s\n' 'before' "$(percent "$out/before.json")" 'with the adapter' "$(percent "$out/adapter.json")" 'merged into one model' "$(percent "$out/merged.json")" \
    'after few answers' "$(percent "$out/start.json")" 'then by GRPO, merged' "$(percent "$out/learned.json")"
say 'Held-out pairs, and rewards of answers to the test'
printf '  %-28s right in %s of the pairs, margin %s\n' 'DPO' "$(number "$out/dpo/metrics.jsonl" eval_accuracy)" "$(number "$out/dpo/metrics.jsonl" eval_margin)" \
    'reward model' "$(number "$out/reward/metrics.jsonl" eval_accuracy)" "$(number "$out/reward/metrics.jsonl" eval_margin)"
printf '  %-28s %s -> %s, %s nats a token from its start\n' 'PPO: reward' "$(number "$out/ppo/finished.json" first_eval_reward)" "$(number "$out/ppo/finished.json" last_eval_reward)" "$(number "$out/ppo/metrics.jsonl" kl)"
printf '\nThe first run is in %s: report.html, metrics.jsonl, adapter/ (PEFT); its merged model in %s; the other runs are in the same folder.\n' "$out/sft" "$out/merged"
