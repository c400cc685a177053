# SPDX-License-Identifier: Apache-2.0
# The scenarios of tests/cli/faults.sh. A scenario has a name, the kind of its result, and a command; `t` is the program with the fault, "$out" its output.
#   text    standard output                        file    the file $out, and others next to it
#   folder  the folder $out, complete or missing   run     a run directory, which --resume completes
# `again` is '' in the first run and --resume in later ones.
SCENARIOS='tokenize:text render:text check:text inspect:text generate:text onednn:text eval:text solve:text
    rows:file scores:file asked:file filter:file convert:file grad:file show:file page:file copy:file
    merge:folder replace:folder init:folder quantize:folder tokenizer:file tokens:file
    lora:run full:run longer:run anew:run cached:run reward:run q_learning:run ppo:run dqn:run sac:run best:run packed:run turns:run grpo:run ppo_text:run dpo:run ilql:run synth:run teacher:run'
command -v python3 >/dev/null || SCENARIOS=$(echo "$SCENARIOS" | sed 's/turns:run//') # its environment is a Python program

text() { "$tune" "$@"; } # makes the inputs of a scenario, without faults
training='--quiet --threads 1 train.batch_size=2 train.max_steps=3 train.save_every=2 train.eval_every=0'
learning='--quiet --threads 1 train.save_every=2 generate.max_new_tokens=4 rl.prompts_per_step=2 rl.num_generations=2 train.max_steps=3 reward.type=length reward.target=4'

# The inputs of all scenarios, in $work.
prepare() {
    demo=recipes/demo
    for kind in train pairs; do awk -v kind=$kind -f $demo/make_rows.awk $demo/words.txt | head -n 12 >"$work/$kind.jsonl" || return 1; done
    awk '{ printf "{\"text\": \"row %d: \\\"%s\\\" \\u00e9\"}\n", NR, $1 }' $demo/words.txt | head -n 8 >"$work/texts.jsonl"
    printf 'prompt,completion\na,b\n"c, d",e\n' >"$work/rows.csv"
    printf '{"prompt": "a", "completion": "b", "reward": 1}\n{"prompt": "a", "completion": "c", "reward": 0}\n' >"$work/rewarded.jsonl"
    printf '{"prompt": "Spell '"'pirate'"' backwards."}\n{"prompt": "Please shout '"'pepper'"'."}\n{"prompt": "How long is '"'violin'"'?"}\n' >"$work/seeds.jsonl"
    text init $demo/model -o "$work/model" --quiet && text sft $training model.path="$work/model" data.train="$work/train.jsonl" output="$work/run" lora.rank=2
}

# The state before a scenario begins: nothing, except for scenarios that replace or continue something.
before() {
    case $1 in
    replace) text init recipes/demo/model -o "$out" --seed 7 --quiet ;;
    longer) text sft $training model.path="$work/model" data.train="$work/train.jsonl" output="$out" lora.rank=2 ;;
    tokens) mkdir "$out" ;;
    anew) text sft $training model.path="$work/model" data.train="$work/train.jsonl" output="$out" lora.rank=2 seed=7 ;;
    esac
}

sft() { t sft $training model.path="$work/model" data.train="$work/train.jsonl" output="$out" $again "$@"; }
rl() { t rl model.path="$work/model" output="$out" $again "$@"; }
synth() {
    t data synth --quiet --threads 1 output="$out" synth.preset=answer synth.seeds="$work/seeds.jsonl" synth.num_rows=3 synth.batch=1 synth.format=prompt_completion \
        synth.prompts='{answer: recipes/synth_demo/answer.jinja}' $again "$@"
}

scenario() {
    case $1 in
    tokenize) t tokenize "$work/model" "$work/texts.jsonl" ;;
    render) t tokenize "$work/model" --chat "$work/train.jsonl" --chat-template chatml ;;
    check) t data check data.train="$work/train.jsonl" model.path="$work/model" ;;
    inspect) t inspect "$work/model" ;;
    generate) t generate "$work/model" --prompt abc --temperature 0 --max-new-tokens 4 ;;
    onednn) (export TUNE_GEMM=onednn && t generate "$work/model" --prompt abc --temperature 0 --max-new-tokens 2) ;;
    eval) t eval "$work/model" --data "$work/train.jsonl" --json --quiet ;;
    solve) t mdp solve FrozenLake-v1 --gamma 0.9 --json ;;
    rows) t generate "$work/model" --input "$work/train.jsonl" --temperature 0 --max-new-tokens 4 -o "$out" --quiet ;;
    scores) t score "$work/model" "$work/train.jsonl" -o "$out" --logits "$out.logits" --quiet ;;
    asked) t score "$work/model" "$work/train.jsonl" --top-k 4 --save "$out" --quiet ;;
    filter) t data filter "$work/train.jsonl" -o "$out" --rejected "$out.rejected" --quiet ;;
    convert) t data filter "$work/rows.csv" -o "$out" --quiet ;;
    grad) t grad "$work/model" "$work/texts.jsonl" -o "$out" --quiet ;;
    show) t mdp show FrozenLake-v1 --gamma 0.9 -o "$out" --quiet ;;
    page) t report "$work/run" "$work/run" -o "$out" --quiet ;;
    copy) t recipes cp demo/sft "$out" ;;
    merge) t merge "$work/model" "$work/run/adapter" -o "$out" --quiet ;;
    replace) t merge "$work/model" "$work/run/adapter" -o "$out" --quiet --force ;;
    init) t init recipes/demo/model -o "$out" --quiet ;;
    quantize) t quantize "$work/model" -o "$out" --method gptq --group 16 --rows "$work/train.jsonl" --threads 1 --quiet ;;
    tokenizer | tokens) t tokenizer train recipes/demo/words.txt --vocab-size 270 --special '<eos>' --eos '<eos>' -o "$out" --quiet ;;
    lora) sft lora.rank=2 ;;
    full) sft ;;
    longer) again=--resume && sft lora.rank=2 train.max_steps=5 ;;
    anew) # until the new run is in its place, the command is repeated with --force, then with --resume
        if [ "$again" ] && ! grep -q 'seed: 7' "$out/recipe.yaml" 2>"$work/none"; then sft lora.rank=2; else again=--force && sft lora.rank=2; fi ;;
    cached) sft lora.rank=2 data.cache="$out.cache" ;;
    reward) t reward $training model.path="$work/model" data.train="$work/pairs.jsonl" output="$out" $again lora.rank=2 ;;
    q_learning) t rl --quiet --threads 1 rl.algorithm=q_learning rl.env=CliffWalking-v1 rl.total_steps=4096 train.save_every=2 output="$out" $again ;;
    ppo) t rl --quiet --threads 1 rl.algorithm=ppo rl.env=CartPole-v1 rl.total_steps=192 rl.num_envs=2 rl.num_steps=32 'policy.hidden=[4]' train.save_every=2 output="$out" $again ;;
    dqn) t rl --quiet --threads 1 rl.algorithm=dqn rl.env=CartPole-v1 rl.total_steps=192 rl.num_steps=64 rl.learning_starts=16 rl.buffer_size=64 train.batch_size=8 \
        'policy.hidden=[4]' train.save_every=2 output="$out" $again ;;
    sac) t rl --quiet --threads 1 rl.algorithm=sac rl.env=Pendulum-v1 rl.total_steps=96 rl.num_steps=32 rl.learning_starts=16 rl.buffer_size=64 train.batch_size=8 \
        'policy.hidden=[4]' train.save_every=2 output="$out" $again ;;
    best) sft lora.rank=2 data.eval="$work/train.jsonl" train.eval_every=1 train.early_stopping=2 train.learning_rate=0.5 ;;
    packed) (training=$(echo "$training" | sed 's/train.batch_size=2/train.batch_tokens=128/') && sft train.gradient_accumulation_steps=2) ;;
    turns) rl $learning rl.algorithm=grpo 'rl.env={command: [python3, recipes/guess_number_env.py], text: true, max_turns: 2}' model.chat_template=plain \
        train.max_steps=2 lora.rank=2 ;;
    grpo) rl $learning rl.algorithm=grpo data.train="$work/train.jsonl" lora.rank=2 ;;
    ppo_text) rl $learning rl.algorithm=ppo data.train="$work/train.jsonl" lora.rank=2 ;;
    dpo) rl $training rl.algorithm=dpo data.train="$work/pairs.jsonl" lora.rank=2 ;;
    ilql) rl $training rl.algorithm=ilql data.train="$work/rewarded.jsonl" lora.rank=2 ;;
    synth) synth synth.teacher="{model: recipes/demo/model, max_new_tokens: 16, greedy: true}" ;;
    teacher) synth synth.teacher="{url: \"http://127.0.0.1:$port/v1\", model: m, retries: 0}" ;;
    esac
}
