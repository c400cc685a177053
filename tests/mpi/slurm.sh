#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tune under Slurm: a cluster of two nodes, both on this machine, whose daemons and files live in a temporary folder. srun starts ranks with the plug-in of each MPI
# library, and without one; sbatch runs the script of docs/many-machines.md, which is asked to end before its time is over and is queued again. The
# results have the bytes of one process. Needs root, munge, Slurm (slurmctld, slurmd, srun, sbatch) and TEST_LONG=1. Not a part of CI.
#   tests/mpi/slurm.sh TUNE
set -u
build=$(cd "$(dirname "$1")" && pwd)
tune=$build/tune recipes=$PWD/recipes page=$PWD/docs/many-machines.md
passed=0 failed=0 skipped=0
skip() {
    echo "skipped: $1"
    echo "[  PASSED  ] 0 test(s)."
    echo "[  SKIPPED ] 1 test(s)."
    exit 0
}
[ -n "${TEST_LONG:-}" ] || skip "TEST_LONG=1 runs it"
PATH=$PATH:/usr/sbin:/sbin
for program in munged mungekey slurmctld slurmd srun sbatch scontrol scancel; do
    command -v $program >/dev/null || skip "needs $program"
done
[ "$(id -u)" = 0 ] || skip "needs root"
work=$(mktemp -d) || exit 1
daemons=
leave() {
    for pid in $daemons; do kill "$pid" 2>/dev/null; done
    for pid in $daemons; do wait "$pid" 2>/dev/null; done
    rm -rf "$work"
}
trap leave EXIT
trap 'exit 130' INT TERM
verdict() { # NAME CODE: 0 is good
    if [ "$2" = 0 ]; then passed=$((passed + 1)) && echo "[       OK ] $1"; else failed=$((failed + 1)) && echo "[  FAILED  ] $1" && cat "$work/said"; fi
}
await() { # SECONDS COMMAND...
    tries=$(($1 * 10))
    shift
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.1
    done
}

# ---- a cluster ----
chmod 755 "$work"
mkdir -p "$work/state" "$work/spool" "$work/munge" "$work/tmp/one" "$work/tmp/two" # two nodes of one machine would share /tmp
chmod 700 "$work/munge"
mungekey --create --keyfile "$work/munge/key" || exit 1
port=$((20000 + $$ % 20000))
node=$(hostname -s)
cat >"$work/slurm.conf" <<CONF
ClusterName=tune
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool/%n
TmpFS=$work/tmp/%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=30
NodeName=one NodeHostname=$node NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=4 State=UNKNOWN
NodeName=two NodeHostname=$node NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=4 State=UNKNOWN
PartitionName=all Nodes=one,two Default=YES MaxTime=INFINITE State=UP
CONF
echo 'CgroupPlugin=cgroup/v1' >"$work/cgroup.conf" # nothing here uses it, but slurmd wants one
export SLURM_CONF="$work/slurm.conf"
# Only these daemons are ended: they stay children of this script.
munged --foreground --force --key-file "$work/munge/key" --socket "$work/munge/socket" --pid-file "$work/munge/pid" --log-file "$work/munge/log" \
    --seed-file "$work/munge/seed" --num-threads 2 >"$work/munged.said" 2>&1 &
daemons=$!
await 10 test -S "$work/munge/socket" || { cat "$work/munged.said" && exit 1; }
slurmctld -D -i -f "$SLURM_CONF" >"$work/slurmctld.said" 2>&1 &
daemons="$daemons $!"
for name in one two; do
    slurmd -D -N $name -f "$SLURM_CONF" >"$work/$name.said" 2>&1 &
    daemons="$daemons $!"
done
ready() { [ "$(scontrol show node | grep -c 'State=IDLE')" = 2 ]; }
await 60 ready || { tail -n 20 "$work"/*.said && exit 1; }

# ---- rows and a model ----
cd "$work" || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
awk -v kind=train -f "$recipes/demo/make_rows.awk" "$recipes/demo/words.txt" | head -n 30 >rows.jsonl
"$tune" init "$recipes/demo/model" -o model --quiet || exit 1
cat >recipe.yaml <<YAML
model: {path: model}
data: {train: rows.jsonl}
lora: {rank: 4, alpha: 8}
train: {batch_size: 4, gradient_accumulation_steps: 2, learning_rate: 0.01, lr_scheduler: constant, max_steps: 40, save_every: 10}
parallel: {lanes: 8}
output: run
YAML
facts() { sed 's/"seconds": *[^,}]*//; s/"tokens_per_second": *[^,}]*//' "$1/metrics.jsonl"; }
same_run() {
    facts "$1" >one.facts && facts "$2" | cmp - one.facts && cmp "$1/adapter/adapter_model.safetensors" "$2/adapter/adapter_model.safetensors"
}
"$tune" sft recipe.yaml --quiet output=alone || exit 1

# ---- srun ----
mpis=$(srun --mpi=list 2>&1)
ranks() { timeout -s KILL 120 srun -N 2 -n 2 "$@" "$tune" sft recipe.yaml >said 2>&1; }
ranks
[ $? = 5 ] && grep -q 'error: srun started 2 processes that cannot find each other' said && grep -q 'hint: start them with srun --mpi=pmix' said && [ ! -e run ]
verdict "srun without a plug-in: exit code 5 before anything is written" $?
try() { # LIBRARY TITLE PLUG-IN
    if [ ! -f "$build/comm_$1.so" ] || ! echo "$mpis" | grep -qw "$3"; then
        skipped=$((skipped + 1))
        echo "skipped: srun --mpi=$3 with $2"
        return
    fi
    rm -rf run
    ranks --mpi="$3" && grep -q "^2 ranks on 1 host ($node 2), $2" said && same_run alone run
    verdict "srun --mpi=$3, $2: the files of one process" $?
    rm -rf run
    timeout -s KILL 120 srun -N 2 -n 2 --mpi="$3" sh -c '[ "$SLURM_PROCID" = 0 ] || export RATE=train.learning_rate=0.02; exec "$0" sft recipe.yaml $RATE' "$tune" \
        >said 2>&1
    code=$? # MPICH asks Slurm to kill the step
    [ $code = 3 ] || [ $code = 137 ] && grep -q 'has another recipe: train.learning_rate 0.02, rank 0 0.01' said && [ ! -e run ]
    verdict "srun --mpi=$3, $2: another recipe on a rank" $?
}
try openmpi 'Open MPI' pmix
try mpich MPICH pmi2

# ---- sbatch: the script of the page, in this cluster's size ----
plugin=
[ -f "$build/comm_mpich.so" ] && echo "$mpis" | grep -qw pmi2 && plugin=pmi2
[ -f "$build/comm_openmpi.so" ] && echo "$mpis" | grep -qw pmix && plugin=pmix
if [ -z "$plugin" ]; then
    skipped=$((skipped + 1))
    echo "skipped: sbatch"
else
    mkdir bin && ln -s "$tune" bin/tune
    # A minute of time, and a signal 20 s before its end
    sed -n '/^A Slurm script:/,/^`--signal/s/^    //p' "$page" | sed "s/--nodes=4 --ntasks-per-node=1 --cpus-per-task=32/--nodes=2 --ntasks-per-node=1 --cpus-per-task=1/
        s/--signal=TERM@120/--signal=TERM@20/; s/--mpi=pmix/--mpi=$plugin/; s|recipe.yaml|recipe.yaml train.max_steps=40000 train.save_every=0|" >job.sh
    rm -rf run
    grep -q '^srun .*--resume' job.sh
    verdict "the page has a script" $?
    submit() { PATH=$work/bin:$PATH timeout -s KILL 300 sbatch --wait --time=1 -o said job.sh >sbatch.said 2>&1; }
    submit
    code=$?
    steps=$(ls run/checkpoints 2>/dev/null)
    [ $code != 0 ] && [ -n "$steps" ] && [ ! -e run/finished.json ] && grep -q 'hint: continue with' said
    verdict "sbatch: the run is asked to end, and saves ${steps:-nothing}" $?
    saved=${steps##*step-}
    sed -i "s/max_steps=[0-9]*/max_steps=$((${saved:-0} + 20))/" job.sh
    submit && [ -e run/finished.json ] && "$tune" sft recipe.yaml --quiet output=long "train.max_steps=$((saved + 20))" train.save_every=0 && same_run long run
    verdict "sbatch again: the run goes on, and has the files of one process" $?
fi
echo "[  PASSED  ] $passed test(s)."
[ $skipped = 0 ] || echo "[  SKIPPED ] $skipped test(s)."
[ $failed = 0 ] || echo "[  FAILED  ] $failed test(s)."
exit $failed
