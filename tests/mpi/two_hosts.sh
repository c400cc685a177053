#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two hosts on one machine: two network namespaces joined by a pair of virtual cables, each with a host name of its own, and a script `ssh` that runs a
# command in one of them. Both MPI libraries add gradients over it, and train; then the cable is cut. Needs root, ip and TEST_LONG=1.
#   tests/mpi/two_hosts.sh TUNE
set -u
build=$(cd "$(dirname "$1")" && pwd)
rank=$build/tests/comm/test_mpi
passed=0 failed=0 skipped=0
a=tune-a-$$ b=tune-b-$$ cable=tv$$
skip() {
    echo "skipped: $1"
    echo "[  PASSED  ] 0 test(s)."
    echo "[  SKIPPED ] 1 test(s)."
    exit 0
}
[ -n "${TEST_LONG:-}" ] || skip "TEST_LONG=1 runs it"
[ "$(id -u)" = 0 ] && command -v ip >/dev/null && [ -x "$rank" ] || skip "needs root, ip and $rank"
ip netns add $a 2>/dev/null || skip "network namespaces are not allowed here"
work=$(mktemp -d) || exit 1
leave() {
    ip netns del $a
    ip netns del $b
    rm -rf "$work"
}
trap leave EXIT
trap 'exit 130' INT TERM
ip netns add $b
ip link add ${cable}a netns $a type veth peer name ${cable}b netns $b
ip -n $a address add 10.99.0.1/24 dev ${cable}a
ip -n $b address add 10.99.0.2/24 dev ${cable}b
for end in a b; do
    ip -n tune-$end-$$ link set ${cable}$end up
    ip -n tune-$end-$$ link set lo up
done
# A cable works a moment after both ends are up.
await_cable() { for _ in 1 2 3 4 5 6 7 8 9 10; do ip -n $b link show ${cable}b | grep -q 'state UP' && break || sleep 0.5; done; }
await_cable

# Skips ssh's options, takes the host, and runs the rest there.
mkdir "$work/bin"
cat >"$work/bin/ssh" <<SSH
#!/bin/sh
while :; do case \$1 in -o | -p | -l) shift 2 ;; -*) shift ;; *) break ;; esac; done
host=\$1
shift
case \$host in 10.99.0.1 | hostA) space=$a name=hostA ;; *) space=$b name=hostB ;; esac
exec ip netns exec \$space unshare --uts sh -c "hostname \$name; \$*"
SSH
chmod +x "$work/bin/ssh"
export PATH="$work/bin:$PATH" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# A run of one process, and what runs on two hosts are compared with
tune=$build/tune
awk -v kind=train -f recipes/demo/make_rows.awk recipes/demo/words.txt | head -n 30 >"$work/rows.jsonl"
"$tune" init recipes/demo/model -o "$work/model" --quiet || exit 1
run="sft model.path=$work/model data.train=$work/rows.jsonl lora.rank=4 lora.alpha=8 train.batch_size=4 train.gradient_accumulation_steps=2"
run="$run train.learning_rate=0.01 train.max_steps=300 train.save_every=5 parallel.lanes=8 parallel.timeout=3"
facts() { sed 's/"seconds": *[^,}]*//; s/"tokens_per_second": *[^,}]*//' "$1/metrics.jsonl"; }
same_run() {
    facts "$work/alone" >"$work/alone.facts" && facts "$1" | cmp - "$work/alone.facts" &&
        cmp "$work/alone/adapter/adapter_model.safetensors" "$1/adapter/adapter_model.safetensors"
}
"$tune" $run --quiet output="$work/alone" || exit 1

on_a() { timeout -s KILL 60 ip netns exec $a unshare --uts sh -c "hostname hostA; $*"; }
verdict() { # NAME CODE: 0 is good
    if [ "$2" = 0 ]; then passed=$((passed + 1)) && echo "[       OK ] $1"; else failed=$((failed + 1)) && echo "[  FAILED  ] $1" && cat "$work/said"; fi
}

try() { # LIBRARY LAUNCHER...
    library=$1
    shift
    if [ ! -f "$build/comm_$library.so" ] || ! command -v "mpirun.$library" >/dev/null; then
        skipped=$((skipped + 1))
        echo "skipped: $library"
        return
    fi
    on_a "$* $rank --rank hosts" >"$work/said" 2>&1
    [ $? = 0 ] && grep -q 'hostA 1, hostB 1' "$work/said" && grep -q 'all is well' "$work/said"
    verdict "$library: sums over two hosts" $?
    { sleep 6; ip -n $a link set ${cable}a down; } &
    on_a "$* $rank --rank votes" >"$work/said" 2>&1
    code=$?
    wait
    ip -n $a link set ${cable}a up
    await_cable
    [ $code != 0 ] && grep -q 'error: rank [01] (host[AB]) has given no sign for' "$work/said"
    verdict "$library: a cut cable" $?
    on_a "$* $tune $run output=$work/$library" >"$work/said" 2>&1 && grep -q '^2 ranks on 2 hosts (hostA 1, hostB 1)' "$work/said" && same_run "$work/$library"
    verdict "$library: the files of one process" $?
    rm -rf "$work/$library"
    { for _ in $(seq 500); do ls "$work/$library"/checkpoints/step-* >/dev/null 2>&1 && break || sleep 0.1; done; ip -n $a link set ${cable}a down; } &
    on_a "$* $tune $run output=$work/$library" >"$work/said" 2>&1
    code=$?
    wait
    ip -n $a link set ${cable}a up
    await_cable
    [ $code != 0 ] && grep -q 'error: rank [01] (host[AB]) has given no sign for' "$work/said" && [ ! -e "$work/$library/finished.json" ] &&
        on_a "$* $tune $run output=$work/$library --resume" >"$work/said" 2>&1 && same_run "$work/$library"
    verdict "$library: a cut cable, then --resume" $?
}
net=10.99.0.0/24
try openmpi mpirun.openmpi --host hostA:1,10.99.0.2:1 --bind-to none --mca btl tcp,self --mca btl_tcp_if_include $net --mca oob_tcp_if_include $net \
    --mca plm_rsh_agent ssh --mca mpi_yield_when_idle 1
# Without these settings UCX finds out that both hosts are one machine, and uses its shared memory.
try mpich mpirun.mpich -genv UCX_TLS tcp,self -launcher ssh -iface ${cable}a -hosts 10.99.0.1,10.99.0.2 -n 2
echo "[  PASSED  ] $passed test(s)."
[ $skipped = 0 ] || echo "[  SKIPPED ] $skipped test(s)."
[ $failed = 0 ] || echo "[  FAILED  ] $failed test(s)."
exit $failed
