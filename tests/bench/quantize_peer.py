# SPDX-License-Identifier: Apache-2.0
"""GPTQ with 4 bits of the same model on the same token ids by llm-compressor and by tune, in turn. Prints time and peak memory of each process, and how far each result is
from the original, computed by transformers in f32 for both.

    pip install llmcompressor==0.14.0.1
    python tests/bench/quantize_peer.py MODEL ROWS.jsonl --tune ./tune [--rows 128] [--length 2048] [--eval 16] [--group 128] [--rounds 1] [--out DIR]

ROWS has `question` and `answer` (GSM8K) or `messages`. Rows are joined and cut to --length tokens, so that each calibration row has so many; --length 0 takes them as they are.
"""
import argparse, json, os, subprocess, sys, tempfile, time

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("rows_file")
parser.add_argument("--tune", default="./tune")
parser.add_argument("--rows", type=int, default=128)
parser.add_argument("--length", type=int, default=2048)
parser.add_argument("--eval", type=int, default=16)
parser.add_argument("--group", type=int, default=128)
parser.add_argument("--rounds", type=int, default=1)
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--out")
parser.add_argument("--part", help="what a process of this script does: rows, peer, kl")
options = parser.parse_args()


def read_ids(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line)["ids"] for line in file]


def write_rows(out):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    found = []
    with open(options.rows_file, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            messages = row.get("messages") or [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}]
            text = tokenizer.apply_chat_template(messages, tokenize=False) if tokenizer.chat_template else "\n".join(message["content"] for message in messages)
            found.append(list(tokenizer(text, add_special_tokens=False).input_ids))
    held, found = found[-options.eval :], found[: -options.eval]
    if options.length:
        joined = [token for ids in found for token in ids]
        found = [joined[at : at + options.length] for at in range(0, len(joined) - options.length + 1, options.length)]
    for name, rows in ("rows", found[: options.rows]), ("eval", held):
        with open(os.path.join(out, name + ".jsonl"), "w", encoding="utf-8") as file:
            for ids in rows:
                file.write(json.dumps({"ids": ids}) + "\n")


def quantise_by_peer(out):
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(options.threads)
    rows = read_ids(os.path.join(out, "rows.jsonl"))
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": options.group}
    recipe = GPTQModifier(config_groups={"group_0": {"targets": ["Linear"], "weights": weights}}, ignore=["lm_head"], dampening_frac=0.01)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16)
    oneshot(model=model, processor=AutoTokenizer.from_pretrained(options.model), recipe=recipe,
            dataset=Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * len(ids) for ids in rows]}),
            num_calibration_samples=len(rows), max_seq_length=max(map(len, rows)), shuffle_calibration_samples=False,
            output_dir=os.path.join(out, "peer"))


def print_divergence(out):
    import torch
    from transformers import AutoModelForCausalLM

    rows = [torch.tensor([ids]) for ids in read_ids(os.path.join(out, "eval.jsonl"))]

    def logprobs(path):
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        with torch.no_grad():
            return [torch.log_softmax(model(ids).logits[0], -1) for ids in rows]

    original = logprobs(options.model)
    for name in "peer", "tune":
        kl = [(a.exp() * (a - b)).sum(-1) for a, b in zip(original, logprobs(os.path.join(out, name)))]
        print(f"{name}: KL {torch.cat(kl).double().mean().item():.5f} nats on {sum(len(k) for k in kl)} tokens")


def measured(name, command):
    """Seconds and peak resident bytes of a process."""
    log = open(os.path.join(options.out, name + ".log"), "w")
    began = time.time()
    process = subprocess.Popen(command, stdout=log, stderr=log)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{name} failed: see {log.name}")
    print(f"{name}: {time.time() - began:.1f} s, {usage.ru_maxrss / 1024:.0f} MiB", flush=True)


def main():
    options.out = options.out or tempfile.mkdtemp()
    os.makedirs(options.out, exist_ok=True)
    again = [sys.executable, *sys.argv, "--out", options.out, "--part"]
    subprocess.run([*again, "rows"], check=True)
    for _ in range(options.rounds):
        measured("peer", [*again, "peer"])
        measured("tune", [options.tune, "quantize", options.model, "-o", os.path.join(options.out, "tune"), "--method", "gptq", "--act-order", "--group", str(options.group), "--rows",
                          os.path.join(options.out, "rows.jsonl"), "--samples", str(options.rows), "--threads", str(options.threads), "--force", "--quiet"])
    subprocess.run([*again, "kl"], check=True)


{"rows": write_rows, "peer": quantise_by_peer, "kl": print_divergence}[options.part](options.out) if options.part else main()
