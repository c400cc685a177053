#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Exact resume: runs that are killed repeatedly (kill -9, also during a save), interrupted or out of disk space end with the same bytes as an
# undisturbed run. A run that needs more memory than there is, is refused before the first step.
#   tests/cli/resume.sh TUNE      KILLS=n: kills of each run (5)
set -u
tune=$1
kills=${KILLS:-5}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0
rows=$work/rows.jsonl
awk -v kind=train -f recipes/demo/make_rows.awk recipes/demo/words.txt | head -n 60 >"$rows"
"$tune" init recipes/demo/model -o "$work/model" --quiet || exit 1

verdict() { # NAME CODE: 0 is good
    if [ "$2" = 0 ]; then passed=$((passed + 1)) && echo "[       OK ] $1"; else failed=$((failed + 1)) && echo "[  FAILED  ] $1"; fi
}
# become_sft OUTPUT SETTINGS...: every step saved, evaluations and early stopping on. In the background it has the program's own process number.
become_sft() {
    out=$1
    shift
    exec "$tune" sft --quiet model.path="$work/model" data.train="$rows" data.eval_split=0.1 output="$out" train.batch_size=4 train.gradient_accumulation_steps=2 \
        train.learning_rate=0.02 train.max_steps=9 train.save_every=1 train.eval_every=3 train.early_stopping=2 "$@"
}
sft() (become_sft "$@")
facts() { sed 's/"seconds": *[^,}]*//; s/"tokens_per_second": *[^,}]*//' "$1/metrics.jsonl"; }
same() { # RUN REFERENCE
    facts "$1" >"$work/facts" && facts "$2" | cmp - "$work/facts" || return 1
    for file in "$2"/*/*.safetensors; do cmp "$file" "$1/${file#"$2"/}" || return 1; done
}
# Resumes the run $1 until it is finished. Kills it after different shares of $2 seconds, from "just started" to "nearly done".
kill_and_resume() {
    run=$1 length=$2 n=0
    shift 2
    while [ $n -lt "$kills" ]; do
        n=$((n + 1))
        become_sft "$run" --resume "$@" 2>"$work/err" &
        pid=$!
        sleep "$(awk -v n=$n -v length_="$length" 'BEGIN { x = n * 0.618034; print length_ * (0.05 + 0.8 * (x - int(x))) }')"
        kill -9 $pid 2>/dev/null
        wait $pid 2>/dev/null
    done
    sft "$run" --resume "$@" || return 1
}
now() { date +%s.%N | sed 's/\.N$//'; }

undisturbed_and_killed() { # NAME SETTINGS...
    name=$1
    shift
    began=$(now)
    sft "$work/$name" --threads 1 "$@" || { verdict "$name" 1; return; }
    length=$(echo "$began $(now)" | awk '{ print $2 - $1 < 0.05 ? 0.05 : $2 - $1 }')
    sft "$work/$name-2" --threads 2 "$@" && same "$work/$name-2" "$work/$name"
    verdict "$name: the same bytes with 1 and 2 threads" $?
    kill_and_resume "$work/$name-killed" "$length" "$@" && same "$work/$name-killed" "$work/$name"
    verdict "$name: killed $kills times" $?
}
undisturbed_and_killed lora lora.rank=4 lora.dropout=0.1
undisturbed_and_killed full lora=null train.checkpointing=layer train.keep_checkpoints=1 train.max_steps=6
undisturbed_and_killed modules lora.rank=2 lora.modules_to_save='[lm_head]' train.batch_size=1 train.optimizer=sgd train.max_steps=6

# A finished run is left unchanged.
cp -R "$work/lora" "$work/before" && sft "$work/lora" --resume lora.rank=4 lora.dropout=0.1 && diff -r "$work/before" "$work/lora"
verdict "finished: resuming changes nothing" $?

# A signal gives a checkpoint and exit code 130, even if it arrives twice at once, as from timeout. Without save_every, the only checkpoint is the signal's.
for signal in INT TERM HUP; do
    become_sft "$work/$signal" --threads 1 lora.rank=4 lora.dropout=0.1 train.save_every=0 2>"$work/err" &
    pid=$!
    tries=0
    while ! [ -s "$work/$signal/metrics.jsonl" ] && [ $tries -lt 500 ]; do sleep 0.01; tries=$((tries + 1)); done
    kill -$signal $pid
    sleep 0.01
    kill -$signal $pid 2>/dev/null
    wait $pid
    code=$?
    [ $code = 130 ] && tail -n 2 "$work/err" | grep -q '^tune: error: interrupted' && ls "$work/$signal/checkpoints" | grep -q '^step-' &&
        sft "$work/$signal" --resume lora.rank=4 lora.dropout=0.1 train.save_every=0 && same "$work/$signal" "$work/lora"
    verdict "SIG$signal: exit code $code with a checkpoint" $?
done

# An interrupted tune generate keeps its finished rows as complete lines in NAME.partial.
for i in $(seq 4000); do echo '{"prompt": "two plus two is"}'; done >"$work/prompts.jsonl"
"$tune" generate "$work/model" --input "$work/prompts.jsonl" --ignore-eos --max-new-tokens 60 --max-batch 4 -o "$work/made.jsonl" 2>"$work/err" &
pid=$!
tries=0
while ! grep -q '^[1-9].*completions' "$work/err" && [ $tries -lt 500 ]; do sleep 0.02; tries=$((tries + 1)); done
kill -INT $pid 2>/dev/null
wait $pid
code=$?
[ $code = 130 ] && [ ! -e "$work/made.jsonl" ] && n=$(grep -c '"completion_ids".*}$' "$work/made.jsonl.partial") && [ "$n" = "$(wc -l <"$work/made.jsonl.partial" | tr -d ' ')" ] &&
    grep -q "^tune: warning: interrupted: the $n rows* done so far .* in '$work/made.jsonl.partial'" "$work/err" && tail -n 2 "$work/err" | grep -q '^tune: error: interrupted'
verdict "interrupted generate: exit code $code, finished rows are kept" $?

# The page of an interrupted rl run shows its steps, and the error message stays the last line of stderr.
"$tune" rl recipes/rl_cartpole_ppo.yaml output="$work/rl" rl.total_steps=100000000 >/dev/null 2>"$work/err" &
pid=$!
for i in $(seq 100); do [ -s "$work/rl/metrics.jsonl" ] && break; sleep 0.1; done
kill -INT $pid 2>/dev/null
wait $pid
code=$?
[ $code = 130 ] && [ -s "$work/rl/report.html" ] && tail -n 2 "$work/err" | grep -q '^tune: error: interrupted' && ! grep -q 'nothing to draw' "$work/err"
verdict "interrupted rl: exit code $code with a page" $?

# A run that ends before its first step has a page that says why, and prints only its error.
"$tune" rl recipes/rl_grpo.yaml --quiet model.path="$work/model" data.train="$rows" reward='[{type: command, command: [sh, -c, "read row; echo no"]}]' output="$work/none" 2>"$work/err"
code=$?
[ $code = 4 ] && grep -q '<h3>What to do</h3>' "$work/none/report.html" && grep -q "^tune: error: reward 'command', '.*' line .* answers wrongly" "$work/err" && [ "$(grep -c '^tune: ' "$work/err")" = 1 ]
verdict "rl that ends before its first step: exit code $code, a page" $?

# A run is not resumed with other rows or another model.
sft "$work/inputs" && rm "$work/inputs/finished.json" && mv "$rows" "$rows.kept" && sed '1s/"completion": "/&x/' "$rows.kept" >"$rows"
sft "$work/inputs" --resume 2>"$work/err"
code=$?
cmp "$rows" "$rows.kept" >/dev/null && code=same
mv "$rows.kept" "$rows"
[ $code = 3 ] && grep -q "the input named by 'data.train' changed after the checkpoint of step" "$work/err" && sft "$work/inputs" --resume
verdict "changed rows are not resumed: exit code $code" $?

# A run that needs more memory than its limit writes nothing.
"$tune" rl recipes/rl_grpo.yaml --quiet model.path="$work/model" data.train="$rows" reward='[{type: exact, field: completion}]' train.max_memory=1MiB output="$work/little" 2>"$work/err"
code=$?
[ $code = 5 ] && [ ! -e "$work/little" ] && grep -q "^tune: error: 'train.max_memory: 1MiB' is too small" "$work/err"
verdict "too little memory for rl: exit code $code, no directory" $?

# No disk space: a file size limit of 64 KiB, which metrics stay below and the tensors of a checkpoint of rank 8 exceed.
(ulimit -f 128 && sft "$work/disk" lora.rank=8) 2>"$work/err"
code=$?
[ $code = 5 ] && tail -n 2 "$work/err" | grep -q '^tune: error: cannot save checkpoint of step 1' && ! ls "$work/disk/checkpoints" | grep -q . && sft "$work/disk" --resume lora.rank=8 &&
    sft "$work/enough" lora.rank=8 && same "$work/disk" "$work/enough"
verdict "full disk: exit code $code, goes on when there is space" $?

# No memory. Skipped under sanitizers, which need more address space than the limit, and on systems without such a limit.
limit=1000000
if (ulimit -v $limit && "$tune" --help) >/dev/null 2>&1; then
    awk 'BEGIN { printf "{\"input_ids\": [3"; for (i = 0; i < 200000; i++) printf ",4"; print "]}" }' >"$work/long.jsonl"
    (ulimit -v $limit && "$tune" sft --quiet --threads 1 model.path="$work/model" data.train="$work/long.jsonl" data.max_length=1000000 output="$work/big" lora.rank=2 train.batch_size=1) 2>"$work/err"
    code=$?
    [ $code = 5 ] && [ ! -e "$work/big" ] && grep -q '^tune: error: training needs more than' "$work/err" && grep -q '^hint: make data.max_length smaller' "$work/err"
    verdict "no memory: exit code $code before the first step" $?
    sed '1s/{/{"reward": 1, /' "$work/long.jsonl" >"$work/rewarded.jsonl"
    (ulimit -v $limit && "$tune" rl recipes/rl_ilql.yaml --quiet --threads 1 model.path="$work/model" data.train="$work/rewarded.jsonl" data.max_length=1000000 output="$work/big" train.batch_size=1) 2>"$work/err"
    code=$?
    [ $code = 5 ] && [ ! -e "$work/big" ] && grep -q '^tune: error: training needs more than' "$work/err"
    verdict "no memory for rows with rewards: exit code $code, no directory" $?
    # A sparse file of 400 MB: its weights, their gradients and AdamW's averages would need 1.6 GB.
    mkdir "$work/large" && sed 's/"vocab_size": *[0-9]*/"vocab_size": 1562500/' "$work/model/config.json" >"$work/large/config.json"
    { printf '\140\0\0\0\0\0\0\0' && printf '%-96s' '{"a.weight": {"dtype": "F32", "shape": [100000, 1000], "data_offsets": [0, 400000000]}}'; } >"$work/large/model.safetensors"
    dd if=/dev/null of="$work/large/model.safetensors" bs=1 seek=400000104 2>/dev/null
    (ulimit -v $limit && "$tune" sft --quiet --threads 1 model.path="$work/large" data.train="$rows" output="$work/big") 2>"$work/err"
    code=$?
    [ $code = 5 ] && [ ! -e "$work/big" ] && grep -q "^tune: error: training every weight of '.*' needs 1.5 GiB" "$work/err" && grep -q '^hint: train a LoRA adapter' "$work/err"
    verdict "no memory for every weight: exit code $code before the model is loaded" $?
fi

echo "[  PASSED  ] $passed test(s)."
[ $failed = 0 ] || { echo "[  FAILED  ] $failed test(s), listed above"; exit 1; }
