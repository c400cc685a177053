#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tune under mpirun: what has to be equal on all ranks, launchers that do not fit, commands over ranks and in one process. Skipped without an MPI launcher.
# TEST_LONG=1 also runs the slow ones, and all of it under MPICH.
#   tests/cli/ranks.sh TUNE [mpich]
set -u
tune=$1 script=$PWD/$0 root=$PWD
case $0 in /*) script=$0 ;; esac
case $tune in /*) ;; *) tune=$PWD/$tune ;; esac
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0 skipped=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
plugins=$(dirname "$tune") recipes=$PWD/recipes

verdict() { # NAME CODE: 0 is good
    if [ "$2" = 0 ]; then passed=$((passed + 1)) && echo "[       OK ] $1"; else failed=$((failed + 1)) && echo "[  FAILED  ] $1" && cat "$work/said"; fi
}
finish() {
    echo "[  PASSED  ] $passed test(s)."
    [ $skipped = 0 ] || echo "[  SKIPPED ] $skipped test(s)."
    [ $failed = 0 ] || echo "[  FAILED  ] $failed test(s)."
    exit $failed
}
# The launcher of a library that has a plug-in: $1 its own name, $2 a word of `mpirun --version`
find_launcher() {
    if command -v "mpirun.$1" >/dev/null; then echo "mpirun.$1"; elif mpirun --version 2>&1 | grep -q "$2"; then echo mpirun; fi
}
openmpi= mpich=
[ -f "$plugins/comm_openmpi.so" ] && openmpi=$(find_launcher openmpi 'Open MPI')
[ -f "$plugins/comm_mpich.so" ] && mpich=$(find_launcher mpich HYDRA)
case $tune in *build/san* | *build/tsan*) openmpi='' mpich='' ;; esac # MPI libraries leak and race
[ -z "$openmpi" ] || openmpi="$openmpi --oversubscribe --bind-to none --mca mpi_yield_when_idle 1"
[ "${2:-}" != mpich ] || openmpi=
launcher=${openmpi:-$mpich}

# Runs on two ranks; rank 1 takes $other instead of $same, and of what is set: the folder AT1, the variable ENV1, the program TUNE1. SIGNAL, for the
# rank SIGNALLED (1), is sent once the run has saved a step; with WAKES a SIGCONT so many seconds later. What both print is in $work/said.
cat >"$work/rank.sh" <<'RANK'
#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}
[ "$rank" = 0 ] || [ -z "${AT1:-}" ] || cd "$AT1" || exit 1
[ "$rank" = 0 ] || [ -z "${ENV1:-}" ] || export "$ENV1"
if [ "$rank" = 1 ] && [ -n "${TUNE1:-}" ]; then shift && set -- "$TUNE1" "$@"; fi
if [ "$rank" = "${SIGNALLED:-1}" ] && [ -n "${SIGNAL:-}" ]; then
    (for _ in $(seq 3000); do ls run/checkpoints/step-* >/dev/null 2>&1 && kill "-$SIGNAL" $$ && break || sleep 0.01; done
        [ -z "${WAKES:-}" ] || { sleep "$WAKES" && kill -CONT $$; }) &
fi
if [ "$rank" = 1 ]; then exec "$@" $OTHER; else exec "$@" $SAME; fi
RANK
two_ranks() { SAME=$same OTHER=$other timeout -s KILL 100 $launcher -n 2 sh "$work/rank.sh" "$tune" "$@" >"$work/${said:-said}" 2>&1; }
said_once() { [ "$(grep -c -e "$1" "$work/said")" = 1 ]; }

awk -v kind=train -f recipes/demo/make_rows.awk recipes/demo/words.txt | head -n 30 >"$work/rows.jsonl"
"$tune" init recipes/demo/model -o "$work/model" --quiet || exit 1
settings='model.path=model data.train=rows.jsonl lora.alpha=8 train.batch_size=4 train.gradient_accumulation_steps=2 train.learning_rate=0.01'
sft() { two_ranks sft $settings output=run train.max_steps=2 "$@"; }

# ---- without a launcher of MPI ----
(cd "$work" && OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 SLURM_STEP_NUM_TASKS='' timeout 60 "$tune" sft nothing.yaml >"$work/said" 2>&1)
code=$?
[ $code = 5 ] && said_once 'error: ' && [ ! -e "$work/run" ]
verdict "the environment says 2, the library 1: exit code 5 before anything is read" $?
SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 "$tune" sft nothing.yaml >"$work/said" 2>&1
[ $? = 5 ] && said_once 'error: srun started 4 processes that cannot find each other'
verdict "srun without a plug-in" $?
SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=1 "$tune" sft nothing.yaml >"$work/said" 2>&1
[ $? = 5 ] && [ ! -s "$work/said" ]
verdict "the other processes of srun say nothing" $?
if [ -z "$launcher" ]; then
    echo "skipped: no launcher with a plug-in"
    skipped=1
    finish
fi

cd "$work" || exit 1
same='' other=''
# ---- what has to be equal ----
same='train.seed=1' other='train.seed=1'
two_ranks sft nothing.yaml
[ $? = 3 ] && said_once 'error: ' && [ ! -e run ]
verdict "a failure of all ranks is printed once" $?
same='lora.rank=4' other='lora.rank=8'
sft
[ $? = 3 ] && said_once 'error: rank 1 (.*) has another recipe: lora.rank 8, rank 0 4' && [ ! -e run ]
verdict "another recipe" $?
same='lora.rank=4' other='lora.rank=4 data.no_such_key=1'
sft
[ $? = 3 ] && said_once 'error: rank 1 (.*): .*no_such_key' && [ ! -e run ]
verdict "a recipe that only rank 1 refuses" $?
mkdir other && cp -R model rows.jsonl other/ && sed 's/a/e/' rows.jsonl >other/rows.jsonl
same='lora.rank=4' other='lora.rank=4'
AT1=other sft
[ $? = 4 ] && said_once 'error: rank 1 (.*) has another data.train' && [ ! -e run ]
verdict "other rows" $?
cp rows.jsonl other/ && printf 'x' | dd of=other/model/model.safetensors bs=1 seek=20001 conv=notrunc 2>dd.log
mv other/model/model.safetensors other/weights && ln -s ../weights other/model/model.safetensors
AT1=other sft
[ $? = 4 ] && said_once 'error: rank 1 (.*) has another model.path' && [ ! -e run ]
verdict "another byte of the weights" $?
echo >>other/model/tokenizer.json && ln -sf ../../model/model.safetensors other/model/model.safetensors
AT1=other sft
[ $? = 4 ] && said_once 'error: rank 1 (.*) has another tokenizer in model.path' && [ ! -e run ]
verdict "another tokenizer" $?
cp model/tokenizer.json other/model/ && ln -sf ../weights other/model/model.safetensors
sft parallel.data=4
[ $? = 3 ] && said_once 'error: 2 ranks are not data 4' && said_once 'hint: parallel.data=2'
verdict "another number of ranks than parallel.data" $?
if [ -n "${TEST_LONG:-}" ]; then
    mkdir program && ln -s "$plugins"/comm_*.so program/
    LC_ALL=C sed 's/tune \([0-9]*\)\.\([0-9]*\)\.[0-9]/tune \1.\2.x/' "$tune" >program/tune && chmod +x program/tune
    TUNE1=$work/program/tune sft
    [ $? = 3 ] && said_once 'error: rank 1 (.*) has another program: tune [0-9.]*x' && [ ! -e run ]
    verdict "another program" $?
    ENV1=TUNE_ISA=base sft
    [ $? = 3 ] && said_once 'error: rank 1 (.*) has another instruction set: base, rank 0 ' && said_once 'hint: parallel.hosts=mixed' && [ ! -e run ]
    verdict "another instruction set" $?
    ENV1=TUNE_ISA=base sft parallel.hosts=mixed && [ -e run/finished.json ]
    verdict "another instruction set, allowed" $?
    rm -rf run
    TUNE_GEMM=openblas ENV1=TUNE_GEMM=own sft
    [ $? = 3 ] && said_once 'error: rank 1 (.*) has another library for products' && [ ! -e run ]
    verdict "another library for products" $?
    ENV1=TUNE_GEMM=none sft
    [ $? = 2 ] && said_once "error: rank 1 (.*): .*'none'" && [ ! -e run ]
    verdict "a wrong setting of rank 1" $?
fi

# ---- runs ----
facts() { sed 's/"seconds": *[^,}]*//; s/"tokens_per_second": *[^,}]*//' "$1/metrics.jsonl"; }
same_run() { facts alone >alone.facts && facts run | cmp - alone.facts && cmp alone/adapter/adapter_model.safetensors run/adapter/adapter_model.safetensors; }
long='train.max_steps=200 train.save_every=1'
"$tune" sft --quiet $settings output=alone lora.rank=4 $long || exit 1
sft $long && said_once '2 ranks on 1 host' && same_run
verdict "two ranks leave the files of one process" $?
rm -rf run
ENV1=OMP_NUM_THREADS=3 sft $long parallel.shard=optimizer && same_run
verdict "the same with a divided optimiser, and other threads on a rank" $?
if [ -n "${TEST_LONG:-}" ]; then
    counted=$(sed -n 's/.*"step": 1,.*"gradients": \([0-9]*\).*"weights": \([0-9]*\).*/\1 \2/p' run/ranks.jsonl | awk '{n += $1 + $2} END {print n}')
    "$tune" plan $settings lora.rank=4 train.max_steps=2 plan.machine=here plan.machines=2 --json >plan.json && tr -d '\n' <plan.json | sed 's/"shard"/\
"shard"/g' | sed -n 's/^"shard": "optimizer", "tensor": 1, "sequence": false, "pipeline": 1,.*"bytes": {"gradients": \([0-9]*\).*"weights": \([0-9]*\).*/\1 \2/p' |
        awk 'NR == 1 {print 2 * ($1 + $2)}' >planned
    [ -n "$counted" ] && [ "$counted" = "$(cat planned)" ]
    verdict "the bytes that ranks sent are those of tune plan: $counted" $?
fi
for signal in KILL STOP INT; do
    rm -rf run
    SIGNAL=$signal sft $long parallel.timeout=3
    code=$?
    case $signal in
    KILL) [ $code != 0 ] ;;
    STOP) [ $code = 5 ] && said_once 'error: rank 1 (.*) has given no sign for' ;;
    INT) [ $code = 130 ] && said_once 'error: ' && said_once 'hint: continue with' ;;
    esac && [ ! -e run/finished.json ] && sft $long --resume && same_run
    verdict "SIG$signal for a rank, then --resume" $?
done
if [ -n "${TEST_LONG:-}" ]; then
    rm -rf run
    SIGNAL=STOP WAKES=4 sft $long parallel.timeout=8 && grep -q 'warning: rank 0 waits for rank 1 (.*), last sign' said && same_run &&
        { [ -z "$openmpi" ] || said_once 'OMPI_MCA_odls_base_sigkill_timeout=60 in the environment of mpirun'; }
    verdict "a rank that stops and goes on is named, and no fault" $?
    rm -rf run
    SIGNAL=KILL SIGNALLED=0 sft $long parallel.timeout=3
    [ $? != 0 ] && [ ! -e run/finished.json ] && sft $long --resume && same_run
    verdict "SIGKILL for rank 0, then --resume" $?
    rm -rf run
    SAME=$same OTHER=$other OMPI_MCA_odls_base_sigkill_timeout=3 timeout -s KILL 100 $launcher -n 2 sh rank.sh "$tune" sft $settings output=run $long >said 2>&1 &
    asked=$!
    for _ in $(seq 3000); do ls run/checkpoints/step-* >/dev/null 2>&1 && break || sleep 0.01; done
    # The launcher is the child of `timeout`
    kill -TERM "$(ps -o pid= --ppid $asked | tr -d ' ')"
    wait $asked
    [ $? != 0 ] && said_once 'hint: continue with' && [ ! -e run/finished.json ] && sft $long --resume && same_run
    verdict "SIGTERM for the launcher, then --resume" $?
    rm -rf run
    sft $long &
    first=$!
    for _ in $(seq 3000); do [ -e run/metrics.jsonl ] && break || sleep 0.01; done
    said=second sft $long --resume
    [ $? = 3 ] && [ "$(grep -c 'error: another process is training in' second)" = 1 ] && wait $first && same_run
    verdict "two runs in one directory: the second one is refused" $?
fi
# ---- policy gradients ----
same='' other=''
sed -n 's/.*"prompt": *"\([^"]*\)".*/{"prompt": "\1"}/p' rows.jsonl | head -n 4 >prompts.jsonl
cp prompts.jsonl other/
cat >policy.yaml <<YAML
model: {path: model}
data: {train: prompts.jsonl}
lora: {rank: 4}
train: {max_steps: 2}
rl: {algorithm: grpo, num_generations: 2, prompts_per_step: 3}
generate: {max_new_tokens: 6, temperature: 6}
reward: [{type: length, target: 3}, {type: command, command: [sed, -u, 's/.*/1/; w asked-{rank}-{ranks}']}]
parallel: {lanes: 4}
YAML
cp policy.yaml other/
policy='rl policy.yaml --quiet'
[ -s prompts.jsonl ] && "$tune" $policy output=policy-alone && two_ranks $policy output=policy && cmp policy-alone/samples.jsonl policy/samples.jsonl &&
    cmp policy-alone/adapter/adapter_model.safetensors policy/adapter/adapter_model.safetensors && [ "$(grep -c '"rank"' policy/ranks.jsonl)" = 4 ] &&
    [ "$(cat asked-0-1 | wc -l)" = "$(cat asked-0-2 asked-1-2 | wc -l)" ] && [ -s asked-1-2 ]
verdict "rl on text: the files of one process" $?
two_ranks $policy output=warned "reward=[{type: length, target: 3}, {type: command, failed: 0, command: [sh, -c, '[ {rank} = 0 ] && sed -u s/.*/1/']}]" &&
    said_once 'warning: rank 1 (.*): reward .*gets the reward .failed'
verdict "rl on text: a warning of one rank names it" $?
asked='--data prompts.jsonl --json --quiet'
"$tune" eval policy-alone $asked >alone.json && two_ranks eval policy-alone $asked && cmp alone.json said
verdict "eval of a policy: the numbers of one process" $?
# ---- commands whose rows are dealt ----
same='' other=''
head -n 9 rows.jsonl >nine.jsonl
cp nine.jsonl other/
answer='generate model --input nine.jsonl --max-new-tokens 6 -n 2 --quiet'
"$tune" $answer -o alone.jsonl && two_ranks $answer -o ranks.jsonl && cmp alone.jsonl ranks.jsonl
verdict "generate: the completions of one process, in their order" $?
"$tune" generate model --prompt abc --greedy --max-new-tokens 4 --quiet >alone.text && two_ranks generate model --prompt abc --greedy --max-new-tokens 4 --quiet &&
    cmp alone.text said
verdict "generate: one prompt is answered once" $?
"$tune" score model nine.jsonl -o alone.jsonl --quiet && two_ranks score model nine.jsonl -o ranks.jsonl --quiet && cmp alone.jsonl ranks.jsonl
verdict "score: the values of one process" $?
judge='eval model --data rows.jsonl --exact-match --json --quiet'
"$tune" $judge >alone.json && two_ranks $judge && cmp alone.json said
verdict "eval: the numbers of one process" $?
(cd other && rm rows.jsonl)
AT1=other two_ranks eval model --data rows.jsonl --quiet
[ $? = 4 ] && said_once 'error: rank 1 (.*)' && said_once rows.jsonl
verdict "eval: a failing rank ends all with its error" $?
AT1=other two_ranks score model nine.jsonl -o other.jsonl --quiet
[ $? = 4 ] && said_once 'error: rank 1 (.*) has another model' && [ ! -e other.jsonl ]
verdict "score: another model on a rank" $?
same='--seed=1' other='--seed=2'
two_ranks $answer -o other.jsonl
[ $? = 2 ] && said_once 'error: rank 1 (.*) has another command line' && [ ! -e other.jsonl ]
verdict "generate: another command line" $?
same='' other=''
cat >synth.yaml <<YAML
synth:
  preset: answer
  seeds: seeds.jsonl
  teacher: {model: $recipes/demo/model, max_new_tokens: 16, greedy: true}
  prompts: {answer: $recipes/synth_demo/answer.jinja}
  num_rows: 3
YAML
cat >seeds.jsonl <<SEEDS
{"prompt": "Spell 'pirate' backwards."}
{"prompt": "Please shout 'pepper'."}
{"prompt": "How many letters are in 'violin'?"}
SEEDS
"$tune" data synth synth.yaml output=made-alone --quiet && two_ranks data synth synth.yaml output=made --quiet &&
    cmp made-alone/rows.jsonl made/rows.jsonl && cmp made-alone/requests.jsonl made/requests.jsonl
verdict "data synth: the rows of one process" $?
# ---- commands of one process ----
same='' other=''
two_ranks inspect model
[ $? = 0 ] && said_once ' tensors, '
verdict "inspect runs once" $?
two_ranks rl "$recipes/rl_taxi_q_learning.yaml" output=taxi
[ $? = 3 ] && said_once 'error: ' && grep -q 'runs in one process, not in 2' said && [ ! -e taxi ]
verdict "environments are refused" $?
# ---- the other library ----
if [ -n "${TEST_LONG:-}" ] && [ -n "$openmpi" ] && [ -n "$mpich" ]; then
    (cd "$root" && sh "$script" "$tune" mpich >"$work/said" 2>&1)
    code=$?
    grep '^\[' "$work/said" | grep -v 'PASSED'
    verdict "all of this under MPICH" $code
fi
finish
