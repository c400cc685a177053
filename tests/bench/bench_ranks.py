# SPDX-License-Identifier: Apache-2.0
"""Two ranks of one thread beside one process of two threads, and beside torch's DDP and FSDP over gloo, on one shape and the same rows, in turn on one machine.

The peer is ddp.py of the peers' folder, run as it is but for a larger shape ("half": 0.5 billion weights) and rows of one length, so that ranks have equal work. Its --lora trains all linear layers, as ours does
here. Prints one line for each way: tokens per second (median over the steps after the first, of all repeats), the largest resident size of a rank, and how much faster it is than the same program in one process.
The last line says whether our adapters have the same bytes. Only what is there runs: --python needs torch, transformers and peft.

    python3 tests/bench/bench_ranks.py --tune ./tune --peers ../shared/peers --python VENV/bin/python --shape half --rows 8 --length 512 --lora 16 --steps 4 --repeat 3
    python3 tests/bench/bench_ranks.py --tune ./tune --peers ../shared/peers --python VENV/bin/python --shape tiny --rows 4 --length 32 --steps 3 --repeat 1          # a try, in a minute
"""
import argparse, hashlib, json, os, random, shutil, statistics, subprocess, sys, tempfile

parser = argparse.ArgumentParser()
parser.add_argument("--tune", required=True)
parser.add_argument("--peers", required=True, help="folder with ddp.py")
parser.add_argument("--python", default=sys.executable, help="with torch, transformers and peft")
parser.add_argument("--mpirun", default="mpirun.openmpi --oversubscribe --bind-to none --mca mpi_yield_when_idle 1")
parser.add_argument("--shape", choices=["tiny", "small", "S", "half"], default="half")
parser.add_argument("--lora", type=int, default=16, help="rank; 0 trains all weights")
parser.add_argument("--rows", type=int, default=8)
parser.add_argument("--length", type=int, default=512)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--shard", default="none", help="ours: parallel.shard")
parser.add_argument("--only", default="", help="ways, separated by ;; all by default")
parser.add_argument("--repeat", type=int, default=3)
parser.add_argument("-o", dest="output", default="")
args = parser.parse_args()
if args.steps < 2: parser.error("--steps 2 or more: the first one is not counted")

HALF = dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, vocab_size=151936)
WORK = tempfile.mkdtemp(prefix="bench-ranks-")
TUNE = os.path.abspath(args.tune)
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", PYTHONDONTWRITEBYTECODE="1")


def replaced(text, old, new):
    if text.count(old) != 1: raise SystemExit(f"ddp.py has changed: {old!r} is there {text.count(old)} times")
    return text.replace(old, new)


# ---- the peer, with the larger shape and rows of one length ----
source = open(os.path.join(args.peers, "ddp.py")).read()
source = replaced(source, 'choices=["tiny", "small", "S"]', 'choices=["tiny", "small", "S", "half"]')
source = replaced(source, "SHAPES = {\n", f"SHAPES = {{\n    \"half\": {HALF!r},\n")
source = replaced(source, "draw.randint(args.length // 2, args.length)", "args.length")
peer = os.path.join(WORK, "ddp.py")
open(peer, "w").write(source)
shapes = {}
exec(source[source.index("SHAPES = {"):source.index("torch.manual_seed(0)")], shapes)  # the peer's own table
shape = shapes["SHAPES"][args.shape]

# ---- the same shape and rows for ours ----
config = dict(shape, architectures=["LlamaForCausalLM"], model_type="llama", head_dim=shape["hidden_size"] // shape["num_attention_heads"], rms_norm_eps=1e-6, rope_theta=10000.0,
              tie_word_embeddings=True, hidden_act="silu", max_position_embeddings=2048, initializer_range=0.02, bos_token_id=0, eos_token_id=1)
json.dump(config, open(os.path.join(WORK, "config.json"), "w"))
with open(os.path.join(WORK, "rows.jsonl"), "w") as rows:
    for step in range(args.steps):
        for micro in range(args.accumulate):
            draw = random.Random(step * 1000 + micro)
            for _ in range(args.rows):
                rows.write(json.dumps({"input_ids": [draw.randrange(shape["vocab_size"]) for _ in range(args.length)]}) + "\n")
subprocess.run([TUNE, "init", os.path.join(WORK, "config.json"), "-o", os.path.join(WORK, "model"), "--quiet"], check=True)
lanes = 1
while lanes < max(args.ranks, args.accumulate): lanes *= 2
SETTINGS = [f"model.path={WORK}/model", "model.compute=f32", f"data.train={WORK}/rows.jsonl", "data.eval_split=0", "data.shuffle=false", f"data.max_length={args.length}",
            f"train.batch_size={args.rows}", f"train.gradient_accumulation_steps={args.accumulate}", f"train.max_steps={args.steps}", "train.learning_rate=1e-3",
            "train.weight_decay=0", "train.max_grad_norm=1", "train.save_last=false", "train.log_every=1", f"parallel.lanes={lanes}"]
if args.lora: SETTINGS += [f"lora.rank={args.lora}", f"lora.alpha={2 * args.lora}", "lora.target_modules=all-linear"]


def ours(name, ranks, threads, extra=()):
    out = os.path.join(WORK, name)
    shutil.rmtree(out, ignore_errors=True)
    launcher = args.mpirun.split() + ["-n", str(ranks)] if ranks > 1 else []
    command = launcher + [TUNE, "sft", "--quiet", "--threads", str(threads), f"output={out}"] + SETTINGS + list(extra)
    subprocess.run(command, check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    rates = [json.loads(line)["tokens_per_second"] for line in open(os.path.join(out, "metrics.jsonl")) if "tokens_per_second" in line]
    result = "adapter/adapter_model.safetensors" if args.lora else "model/model.safetensors"
    peak = json.load(open(os.path.join(out, "finished.json")))["peak_rss_bytes"]
    return rates[1:], peak / 2**20, hashlib.sha256(open(os.path.join(out, result), "rb").read()).hexdigest()[:16]


def theirs(mode, ranks, threads):
    launcher = [args.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else [args.python]
    command = launcher + [peer, "--mode", mode, "--shape", args.shape, "--lora", str(args.lora), "--rows", str(args.rows), "--length", str(args.length), "--accumulate", str(args.accumulate),
                          "--steps", str(args.steps), "--threads", str(threads)]
    said = subprocess.run(command, check=True, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    told = json.loads(said.strip().splitlines()[-1])
    return [told["tokens_per_second"][1]], told["peak_rss_mib"], told["weights"]


WAYS = {
    "tune, 1 process": lambda: ours("one", 1, args.ranks),
    "tune, ranks": lambda: ours("ranks", args.ranks, 1, [f"parallel.shard={args.shard}"]),
    "tune, own copies": lambda: ours("copies", args.ranks, 1, [f"parallel.shard={args.shard}", "parallel.share_frozen=none"]),
    "torch single": lambda: theirs("single", 1, args.ranks),
    "torch DDP": lambda: theirs("ddp", args.ranks, 1),
    "torch FSDP2": lambda: theirs("fsdp2", args.ranks, 1),
    "torch FSDP1": lambda: theirs("fsdp1", args.ranks, 1),
}
ALONE = {"tune, ranks": "tune, 1 process", "tune, own copies": "tune, 1 process", "torch DDP": "torch single", "torch FSDP2": "torch single", "torch FSDP1": "torch single"}
wanted = [w.strip() for w in args.only.split(";")] if args.only else list(WAYS)
rates, peaks, hashes = {w: [] for w in wanted}, {w: [] for w in wanted}, {w: set() for w in wanted}
for _ in range(args.repeat):
    for way in wanted:
        try:
            one = WAYS[way]()
        except (subprocess.CalledProcessError, FileNotFoundError, IndexError) as fault:
            print(f"{way}: {fault}", file=sys.stderr)
            continue
        rates[way] += one[0]
        peaks[way].append(one[1])
        hashes[way].add(one[2])

print(f"{args.shape}, lora {args.lora}, {args.rows} x {args.length} tokens x {args.accumulate}, {args.ranks} ranks; load {os.getloadavg()[0]:.2f}")
results = {}
for way in wanted:
    if not rates[way]: continue
    median = statistics.median(rates[way])
    alone = rates.get(ALONE.get(way, ""), [])
    efficiency = median / statistics.median(alone) if alone else None
    results[way] = {"tokens_per_second": median, "low": min(rates[way]), "high": max(rates[way]), "peak_mib": max(peaks[way]), "efficiency": efficiency, "weights": sorted(hashes[way])}
    print(f"{way:16s} {median:9.1f} tokens/s ({min(rates[way]):.1f} to {max(rates[way]):.1f})  {max(peaks[way]):8.0f} MiB a rank" + (f"  x {efficiency:.3f} of one process" if efficiency else ""))
both = [w for w in ("tune, 1 process", "tune, ranks") if w in results]
if len(both) == 2: print("same bytes" if hashes[both[0]] == hashes[both[1]] and len(hashes[both[0]]) == 1 else "OTHER BYTES")
if args.output: json.dump(results, open(args.output, "w"), indent=2)
shutil.rmtree(WORK, ignore_errors=True)
