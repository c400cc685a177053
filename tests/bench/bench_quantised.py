#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Quantised bases beside llama.cpp and PEFT with bitsandbytes, on the same files, taking turns. Prints one markdown table a question.

  bench_quantised.py decode --tune-bench ./tune-bench --llama BIN FILE.gguf ...   tokens/s of decoding at batch 1 and 8, and of a prompt of 512 tokens
  bench_quantised.py train  --tune ./tune --tune-bench ./tune-bench --peers PYTHON MODEL   tokens/s of LoRA on bf16 and on quantised forms of MODEL (a Hugging
                            Face directory), at 512 and 2,048 tokens a step, and of PEFT on bitsandbytes' nf4 at 512

BIN: the folder with llama.cpp's llama-bench and llama-batched-bench. PYTHON: an interpreter with torch, transformers, peft and bitsandbytes.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

FORMS = ["nf4", "fp4", "int8", "q8_0", "q4_0", "q4_k", "q6_k"]
LORA = ["lora.rank=16", "lora.alpha=32", "lora.target_modules=[q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]"]


def text_of(command, seconds=400):
    run = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    if run.returncode:
        sys.exit(f"{' '.join(command)}: {run.stderr[-500:]}")
    return run.stdout


def json_lines(command):
    return [json.loads(line) for line in text_of(command).splitlines() if line.startswith("{")]


def ours(args, model, *settings):
    [row] = json_lines([args.tune_bench, model, *settings, "--threads", str(args.threads), "--quiet", "--json"])
    return row["tokens_per_second"]


def median(rates):
    return statistics.median(rates)


# ---- decoding ----


def llama(args, file):
    bench = json.loads(text_of([os.path.join(args.llama, "llama-bench"), "-m", file, "-p", "512", "-n", "64", "-t", str(args.threads), "-r", "1", "-o", "json"]))
    rates = {"prompt" if row["n_prompt"] else "1": row["avg_ts"] for row in bench}
    options = "-c 4096 -b 2048 -ub 512 -npp 16 -ntg 64 -npl 8 --output-format jsonl -t".split()
    [batched] = json_lines([os.path.join(args.llama, "llama-batched-bench"), "-m", file, *options, str(args.threads)])
    return {**rates, "8": batched["speed_tg"]}


def decode(args):
    kinds = {"1": ["--work", "decode"], "8": ["--work", "decode8"], "prompt": ["--work", "prefill"]}
    print("| file | " + " | ".join(f"{kind}: tune | llama.cpp | ratio" for kind in ("batch 1", "batch 8", "prompt")) + " |")
    print("|---" * 10 + "|")
    for file in args.models:
        us, them = {kind: [] for kind in kinds}, {kind: [] for kind in kinds}
        for _ in range(args.rounds):
            for kind, rate in llama(args, file).items():
                them[kind].append(rate)
            for kind, work in kinds.items():
                us[kind].append(ours(args, file, *work))
        cells = [f"{median(us[kind]):.1f} | {median(them[kind]):.1f} | {median(us[kind]) / median(them[kind]):.2f}" for kind in kinds]
        print(f"| {os.path.basename(file)} | " + " | ".join(cells) + " |", flush=True)


# ---- training ----

PEFT = """
import json, sys, time
import torch, transformers, peft
model, rows, steps, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(threads); torch.manual_seed(0)
form = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16)
base = transformers.AutoModelForCausalLM.from_pretrained(model, quantization_config=form, dtype=torch.bfloat16, device_map="cpu")
targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
trained = peft.get_peft_model(base, peft.LoraConfig(r=16, lora_alpha=32, target_modules=targets, task_type="CAUSAL_LM")).train()
params = [p for p in trained.parameters() if p.requires_grad]
adam = torch.optim.AdamW(params, lr=1e-4, weight_decay=0.0, fused=True)
ids = torch.randint(3, 49000, (rows, 512), generator=torch.Generator().manual_seed(0))
seconds = []
for _ in range(steps + 1):
    began = time.perf_counter()
    with torch.autocast("cpu", dtype=torch.bfloat16): loss = trained(input_ids=ids, labels=ids).loss
    loss.backward(); torch.nn.utils.clip_grad_norm_(params, 1.0); adam.step(); adam.zero_grad(set_to_none=True)
    seconds.append(time.perf_counter() - began)
print(json.dumps({"tokens_per_second": ids.numel() * steps / sum(seconds[1:])}))
"""


def quantised(args, form, folder):
    """The base that `tune sft` makes for model.quantize: FORM, after one step."""
    rows = os.path.join(folder, "rows.jsonl")
    with open(rows, "w", encoding="utf-8") as file:
        file.write('{"text": "one two three"}\n' * 2)
    settings = [f"model.path={args.models[0]}", f"model.quantize={form}", f"data.train={rows}", "data.eval_split=0", "data.max_length=16", "train.max_steps=1"]
    text_of([args.tune, "sft", *settings, *LORA, f"output={folder}/run-{form}", "--quiet"])
    name = os.path.basename(os.path.normpath(args.models[0]))
    [base] = [entry for entry in os.listdir(folder) if entry.lower().startswith(f"{name.lower()}-{form}-")]
    return os.path.join(folder, base)


def train(args):
    print("| tokens a step | form | tokens/s | of bf16 LoRA |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        models = {"bf16": args.models[0], **{form: quantised(args, form, folder) for form in args.forms}}
        for rows in (1, 4):
            rates = {form: [] for form in models}
            for _ in range(args.rounds):
                for form, model in models.items():
                    rates[form].append(ours(args, model, "--work", "sft", "--batch", str(rows), "--tokens", "512", "--steps", "2"))
            for form in models:
                print(f"| {512 * rows} | {form} | {median(rates[form]):.1f} | {median(rates[form]) / median(rates['bf16']):.2f} |", flush=True)
            if args.peers and rows == 1:  # four rows take the peer minutes a step
                [row] = json_lines([args.peers, "-c", PEFT, args.models[0], str(rows), "1", str(args.threads)])
                print(f"| {512 * rows} | PEFT, bitsandbytes nf4 | {row['tokens_per_second']:.1f} | {row['tokens_per_second'] / median(rates['bf16']):.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=["decode", "train"])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tune", default="./tune")
    parser.add_argument("--tune-bench", default="./tune-bench")
    parser.add_argument("--llama", help="decode: folder of llama.cpp's programs")
    parser.add_argument("--peers", help="train: Python with torch, transformers, peft, bitsandbytes")
    parser.add_argument("--forms", type=lambda text: text.split(","), default=FORMS)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.question == "decode":
        decode(args)
    else:
        train(args)


if __name__ == "__main__":
    main()
