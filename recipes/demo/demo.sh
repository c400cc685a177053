#!/bin/sh
# The main job in small: a tiny model learns to follow plain English. Everything it needs is in this folder; what it makes is in runs/demo.
#   make demo        or        sh recipes/demo/demo.sh ./tune
set -eu
tune=${1:-./tune}
here=$(dirname "$0")
out=${2:-runs/demo}
rm -rf "$out"
mkdir -p "$out"

say() { printf '\n\033[1m%s\033[0m\n' "$1"; }
# Prints a command as one would type it, then runs it.
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

say '1. Rows: 344 words to learn from, 85 others to be asked about'
for kind in train test; do awk -v kind=$kind -f "$here/make_rows.awk" "$here/words.txt" > "$out/$kind.jsonl"; done
head -n 2 "$out/train.jsonl"

say '2. What the model can do before: it has only ever seen invented words in a terse notation'
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

say 'Answers that are exactly right, on words that were not in the training rows'
printf '  %-28s %s\n' 'before' "$(percent "$out/before.json")" 'with the adapter' "$(percent "$out/adapter.json")" 'merged into one model' "$(percent "$out/merged.json")"
printf '\nThe run is in %s: metrics.jsonl, adapter/ (PEFT), the merged model in %s.\n' "$out/sft" "$out/merged"
