# SPDX-License-Identifier: Apache-2.0
"""Works of `tune-bench` and the same work by the tools that a user would take instead, in turn on one machine: make bench-peers.

The peers' scripts print one JSON line each and make their models in $PEERS_TMP; `tune` runs on these very models and rows, with the same batch, lengths, LoRA rank and targets, threads and precision. A ratio
above 1 is in favour of `tune`: of rates ours by theirs, of seconds and bytes theirs by ours. Only what is installed runs: llama.cpp where $LLAMA_BIN has its programs and $LLAMA_SRC its source. Peers run with
tcmalloc where it is, but for those whose name says `installed`.

    python tests/bench/bench_peers.py --tune ./tune --tune-bench ./tune-bench --peers DIR [--only REGEX] [--repeat N] -o bench-peers.json
"""
import argparse, importlib.metadata, importlib.util, json, os, re, subprocess, sys, tempfile, time

parser = argparse.ArgumentParser()
parser.add_argument("--tune", required=True)
parser.add_argument("--tune-bench", required=True)
parser.add_argument("--peers", required=True)
parser.add_argument("--only", default="")
parser.add_argument("--repeat", type=int, default=1)
parser.add_argument("-o", dest="output", required=True)
options = parser.parse_args()

PEERS, TUNE, TUNE_BENCH = (os.path.abspath(path) for path in (options.peers, options.tune, options.tune_bench))
TMP = os.environ.setdefault("PEERS_TMP", os.path.join(tempfile.gettempdir(), "tune-peers"))
os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
sys.dont_write_bytecode = True
doctor = json.loads(subprocess.check_output([TUNE, "doctor", "--json"]))
THREADS = doctor["threads"]
os.environ["PEERS_THREADS"] = str(THREADS)
TCMALLOC = next((p for d in ("/usr/lib", "/usr/lib64") for root, _, files in os.walk(d) for p in [os.path.join(root, "libtcmalloc_minimal.so.4")] if os.path.basename(p) in files), None)
NATIVE_BF16 = any(f in doctor["cpu"]["features"] for f in ("amx_bf16", "avx512_bf16", "bf16"))
sys.path.insert(0, PEERS)
import common  # noqa: E402  the peers' own: where data and models are


class Job:
    """A peer's command, arguments of `tune-bench`, and what of both is compared. needs: modules, or $VARIABLES. pairs: (unit, value of ours, value of theirs, target of the ratio or
    None, higher is better)."""

    def __init__(self, name, needs, peer, ours, pairs, bf16=False):
        self.name, self.needs, self.peer, self.ours, self.pairs, self.bf16 = name, needs.split(), peer.split(), ours.split(), pairs, bf16

    def wanted(self):
        if options.only:
            return re.search(options.only, self.name) is not None
        return NATIVE_BF16 or not self.bf16

    def missing(self):
        return [n for n in self.needs if (n[1:] not in os.environ if n[0] == "$" else importlib.util.find_spec(n) is None)]


def rate(target, ours="tokens_per_second", theirs=lambda p: p["tokens_per_s"]):
    return ("tokens/s", lambda o: o[ours], theirs, target, True)


def memory(target):
    return ("MiB", lambda o: o["peak_rss_bytes"] / 2**20, lambda p: p["peak_rss_mib"], target, False)


def at_most(unit, value, limit):
    """A target that no peer sets: the limit takes the peer's place."""
    return (f"{unit} at most", value, lambda p: limit, 1, False)


def memory_at_most(gib):
    return at_most("MiB", lambda o: o["peak_rss_bytes"] / 2**20, gib * 1024)


def decoded(target):
    return ("tokens/s", lambda o: o["tokens_per_second"], lambda p: p["decode_tokens_per_s"]["median"], target, True)


def sft(shape, dtype, steps, target, least_memory=None, more="", work="sft", rows="", most_gib=None):
    compute = "f32" if dtype == "f32" else "bf16"
    mode = "mix" if work == "sft_mix" else "fixed"
    name = f"{work} {shape} {dtype}{' compiled' if '--compile' in more else ''}"
    batch = "--batch 8" if mode == "mix" else "--batch 4 --tokens 512"
    return Job(name, "torch transformers" + ("" if work == "full" else " peft"), f"sft.py --shape {shape} --dtype {dtype} --mode {mode} --steps {steps} {more}",
               f"{TMP}/{shape} --work {work} {batch} --steps {steps} --compute {compute} {rows}", [rate(target), memory(least_memory)] + ([memory_at_most(most_gib)] if most_gib else []), bf16=dtype != "f32")


def tokenizer(name, path):
    mb = lambda p: p[f"{name} 1t"]["encode_mb_per_s"]["max"]
    pairs = [("MB/s", lambda o: o["mbytes_per_second"], mb, 8, True)]
    if name == "gpt2" and importlib.util.find_spec("tiktoken"):
        pairs.append(("MB/s of tiktoken", lambda o: o["mbytes_per_second"], lambda p: p["tiktoken gpt2 1t"]["encode_mb_per_s"]["max"], 2, True))
    return Job(f"tokenizer {name}", "tokenizers transformers", "tokenizers_bench.py", f"{path} --work tokenizer --rows {TMP}/texts.jsonl --threads 1", pairs)


def llama(shape, batch, target):
    key = f"{shape} bf16 b{batch} decode tok/s"
    return Job(f"decode {shape} b{batch} llama.cpp", "$LLAMA_BIN $LLAMA_SRC", f"llamacpp.py batched --shape {shape} --types bf16", f"{TMP}/{shape} --work decode --batch {batch} --tokens 64 --compute bf16",
               [("tokens/s", lambda o: o["tokens_per_second"], lambda p: p["tokens_per_s"][key]["median"], target, True)], bf16=True)


def line(result, key, value):
    """That of the lines which says so."""
    return next(each for each in result["lines"] if each.get(key) == value)


def ppo(peer, needs, settings, target):
    return Job(f"ppo {settings}", needs, f"rl.py {peer} --total 50000", "ppo", [("steps/s", lambda o: line(o, "settings", settings)["steps_per_second"], lambda p: p["steps_per_s"], target, True)])


def mdp(states, library, methods, target):
    """Seconds of a random world's solution; theirs with what making the object takes, which is where one of them checks its input."""
    def theirs(method):
        def seconds(p):
            found = p["random"][f"{library}.{method}"]
            return found["seconds"]["median"] + found["construct_s"]["median"]
        return seconds
    return Job(f"mdp {states} {library}", f"scipy {library}", f"mdp.py --states {states}", f"mdp --states {states}",
               [(f"s, {work}", lambda o, work=work: line(o, "work", work)["seconds"], theirs(method), target, False) for work, method in methods])


MIX, PAIRS = f"--rows {TMP}/mix.jsonl", f"--rows {TMP}/pairs.jsonl"
HF = "float32" if not NATIVE_BF16 else "bfloat16"
COMPUTE = "--compute " + ("bf16" if NATIVE_BF16 else "f32")
JOBS = [
    sft("S", "f32", 3, 1.3, 2.9),
    sft("Q", "f32", 2, 1.1, 2.5),
    sft("S", "f32", 3, 1.4, None, "--full", "full"),
    sft("S", "f32", 8, None, None, "", "sft_mix", MIX),
    sft("S", "bf16", 3, 3.6, 2.9),
    sft("S", "bf16pure", 3, 2.6, 2.9, most_gib=1.1),
    sft("S", "bf16pure", 3, 1.8, 2.9, "--compile"),
    sft("Q", "bf16pure", 2, 1.9, 2.5, most_gib=2.6),
    sft("Q", "bf16pure", 2, 1.35, 2.5, "--compile"),
    sft("S", "bf16pure", 20, 4, None, "", "sft_mix", MIX),
    sft("S", "bf16pure", 20, 3.2, None, "--compile", "sft_mix", MIX),
    sft("Q", "bf16pure", 4, None, None, "", "sft_mix", MIX, most_gib=3),
    sft("S", "bf16pure", 3, 2.5, None, "--full", "full"),
    Job("dpo S", "torch trl peft datasets", "dpo.py --shape S --steps 3", f"{TMP}/S --work dpo --batch 4 --steps 3 {PAIRS} {COMPUTE}",
        [("pairs/s", lambda o: o["rows_per_second"], lambda p: p["pairs"] / p["seconds_per_step"]["median"], 6, True), memory(None)], bf16=True),
    Job("grpo S", "torch trl peft datasets", "grpo.py --shape S --prompts 4 --steps 2", f"{TMP}/S --work grpo --batch 4 --tokens 64 --steps 2 {MIX} {COMPUTE}",
        [("s a step", lambda o: 32 / o["rows_per_second"], lambda p: p["seconds_per_step"]["median"], 7, False), memory(None)], bf16=True),
    Job("grpo S installed", "torch trl peft datasets", "grpo.py --shape S --prompts 4 --steps 2", f"{TMP}/S --work grpo --batch 4 --tokens 64 --steps 2 {MIX} {COMPUTE}",
        [("s a step", lambda o: 32 / o["rows_per_second"], lambda p: p["seconds_per_step"]["median"], 10, False)], bf16=True),
    Job("sft_mix S trl installed", "torch trl peft datasets", "trl_sft.py --shape S --steps 3", f"{TMP}/S --work sft_mix --batch 8 --steps 3 {COMPUTE} {MIX}", [rate(14)], bf16=True),
    *[Job(f"decode {shape} b{batch}", "torch transformers", f"hf_generate.py --shape {shape} --batch {batch} --prompt 128 --new 64 --dtype {HF}",
          f"{TMP}/{shape} --work decode --batch {batch} --tokens 64 {COMPUTE}", [decoded(target), memory(None)])
      for shape, batch, target in (("S", 1, None), ("S", 8, 3.5), ("S", 32, 8), ("Q", 1, None), ("Q", 8, 2.2))],
    *[llama(*each) for each in (("S", 1, 1.25), ("S", 8, 3.5), ("S", 32, 8), ("Q", 1, 1.25), ("Q", 8, 2.2))],
    *[Job(f"prefill S llama.cpp {kind}", "$LLAMA_BIN $LLAMA_SRC", f"llamacpp.py bench --shape S --types {kind}", f"{TMP}/S --work prefill --compute bf16",
          [("tokens/s", lambda o: o["tokens_per_second"], lambda p, kind=kind: p["tokens_per_s"][f"S {kind} pp512"]["median"], target, True)], bf16=True)
      for kind, target in (("bf16", 5), ("q8_0", 1.8))],
    ppo("sb3", "torch gymnasium stable_baselines3", "sb3", 50),
    ppo("cleanrl", "torch gymnasium", "cleanrl", 20),
    mdp(200000, "quantecon", (("vi", "value_iteration"), ("mpi", "modified_policy_iteration")), 5),
    mdp(2000, "quantecon", (("vi", "value_iteration"), ("mpi", "modified_policy_iteration")), 5),
    mdp(2000, "mdptoolbox", (("vi", "ValueIteration"), ("mpi", "PolicyIterationModified")), 1000),
    tokenizer("gpt2", os.path.join(common.DATA, "tokenizers", "gpt2-tokenizer", "hf")),
    tokenizer("qwen2", f"{TMP}/Q"),
    tokenizer("smollm2", os.path.join(common.DATA, "tokenizers", "smollm2-tokenizer")),
    Job("merge Q", "torch transformers peft", "merge.py --shape Q", f"{TMP}/Q --work merge",
        [("s", lambda o: o["seconds"], lambda p: p["total_s"], 5, False), ("MiB", lambda o: o["peak_rss_bytes"] / 2**20, lambda p: p["peak_rss_mib"], 10, False)]),
    Job("start S", "torch transformers peft", f"sft.py --shape S --dtype {'bf16' if NATIVE_BF16 else 'f32'} --steps 1", f"{TMP}/S --work start --steps 2 {COMPUTE}",
        [("s to the first step's end", lambda o: o["seconds_to_first_step"], lambda p: p["first_step_s"], 5 if NATIVE_BF16 else None, False),
         at_most("s", lambda o: o["seconds_to_first_step"], 1.5)]),
]


def cpu_seconds():
    """Of the whole machine, without idling; of the children that have ended."""
    fields = [int(x) / os.sysconf("SC_CLK_TCK") for x in open("/proc/stat").readline().split()[1:9]]
    times = os.times()
    return sum(fields[:3]) + sum(fields[5:8]), times.children_user + times.children_system


def run(command, environment=None):
    """The last JSON line that a command prints, with all of them and the cores that other programs took meanwhile."""
    busy, own, began = *cpu_seconds(), time.time()
    done = subprocess.run(command, env=dict(os.environ, **(environment or {})), capture_output=True, text=True)
    busy, own, seconds = cpu_seconds()[0] - busy, cpu_seconds()[1] - own, time.time() - began
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"exit {done.returncode} of {' '.join(command)}: {done.stderr.strip()[-300:]}")
    return dict(json.loads(lines[-1]), lines=[json.loads(line) for line in lines], other_cores=round(max(busy - own, 0) / max(seconds, 1e-9), 2))


def make_texts():
    """What tokenizers_bench.py encodes: tiny Shakespeare in rows of about 1 kB, then GSM8K."""
    folder = os.path.join(common.DATA, "rows", "tinyshakespeare")
    text = "".join(open(os.path.join(folder, f), encoding="utf-8").read() for f in sorted(os.listdir(folder)) if not f.endswith("NOTE"))
    rows, row = [], ""
    for line in text.splitlines(True):
        row += line
        if len(row) > 1000:
            rows.append(row)
            row = ""
    rows += [row] + [question + "\n" + answer for question, answer in common.gsm8k()]
    with open(os.path.join(TMP, "texts.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": row}) + "\n" for row in rows)


def prepare():
    os.makedirs(TMP, exist_ok=True)
    if not all(os.path.exists(os.path.join(TMP, name)) for name in ("S/model.safetensors", "Q/model.safetensors", "mix.jsonl", "pairs.jsonl")):
        subprocess.check_call([sys.executable, os.path.join(PEERS, "make_models.py")], stdout=subprocess.DEVNULL)
    if not os.path.exists(os.path.join(TMP, "texts.jsonl")):
        make_texts()


def prepare_llama(shape, kind):
    """The script's own way, from bf16 to others; its converter takes a minute."""
    missing = [k for k in dict.fromkeys(("bf16", kind)) if not os.path.exists(os.path.join(TMP, f"{shape}-{k}.gguf"))]
    if missing:
        subprocess.check_call([sys.executable, os.path.join(PEERS, "llamacpp.py"), "convert", "--shape", shape, "--types", ",".join(missing)], stdout=subprocess.DEVNULL)


def check_same(job, ours, theirs):
    """Settings that both tell have to be the same."""
    same = {"threads": THREADS if "--threads" not in job.ours else None, "batch": ours["batch"] if job.peer[0] == "hf_generate.py" else None}
    for key, value in same.items():
        if value is not None and key in theirs and theirs[key] != value:
            raise RuntimeError(f"{job.name}: '{key}' is {value} here and {theirs[key]} there")


answers = {}  # one command of a peer may answer several jobs


def ask_peer(job, turn):
    preload = TCMALLOC if "installed" not in job.name else None
    key = (turn, preload, *job.peer)
    if key not in answers:
        if job.peer[0] == "llamacpp.py":
            prepare_llama(job.peer[3], job.peer[5])
        answers[key] = run([sys.executable, os.path.join(PEERS, job.peer[0])] + job.peer[1:], {"LD_PRELOAD": preload} if preload else None)
    return answers[key]


def compare(job, rows):
    results = []
    for turn in range(options.repeat):
        theirs = ask_peer(job, turn)
        ours = run([TUNE_BENCH] + job.ours + ["--json", "--quiet"] + ([] if "--threads" in job.ours else ["--threads", str(THREADS)]))
        check_same(job, ours, theirs)
        results.append((ours, theirs))
    for unit, of_ours, of_theirs, target, higher in job.pairs:
        best = max if higher else min
        mine, others = best(of_ours(o) for o, _ in results), best(of_theirs(t) for _, t in results)
        ratio = mine / others if higher else others / mine
        holds = None if target is None else ratio >= target
        rows.append(dict(name=job.name, peer=" ".join(job.peer), unit=unit, ours=mine, theirs=others, ratio=ratio, target=target, holds=holds,
                         other_cores=max(r["other_cores"] for pair in results for r in pair)))
        print(f"{job.name:26} {unit:24} {mine:10.4g} {others:10.4g} {ratio:7.2f} {'-' if target is None else target:>6} {'-' if holds is None else 'yes' if holds else 'no':>5}", flush=True)


def version_of(module):
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return None


def write(rows):
    result = dict(date=time.strftime("%Y-%m-%d", time.gmtime()), version=doctor["version"], cpu=doctor["cpu"]["name"], features=" ".join(doctor["cpu"]["features"]), threads=THREADS,
                  f32_gflops=doctor["gemm"]["f32_gflops"], bf16_gflops=doctor["gemm"]["bf16_gflops"], read_gbytes_per_second=doctor["read_gbytes_per_second"],
                  peers={m: version_of(m) for m in ("torch", "transformers", "peft", "trl", "tokenizers", "quantecon", "pymdptoolbox", "stable-baselines3")} | {"tcmalloc": bool(TCMALLOC)}, rows=rows)
    beside = options.output + ".new"
    with open(beside, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    os.replace(beside, options.output)


def main():
    rows = []
    prepare()
    print(f"{'work':26} {'unit':24} {'tune':>10} {'peer':>10} {'ratio':>7} {'target':>6} {'holds':>5}", flush=True)
    for job in JOBS:
        if not job.wanted():
            continue
        if job.missing():
            print(f"{job.name:26} left out: {', '.join(job.missing())} not installed", flush=True)
            continue
        try:
            compare(job, rows)
        except (RuntimeError, KeyError, TypeError) as error:
            print(f"{job.name:26} failed: {error}", flush=True)
            rows.append(dict(name=job.name, peer=" ".join(job.peer), error=str(error)))
        write(rows)  # what is there so far: the whole takes an hour
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
