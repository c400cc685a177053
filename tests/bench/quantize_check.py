# SPDX-License-Identifier: Apache-2.0
"""Whether the package compressed-tensors reads what `tune quantize` writes: quantises a model with each method, decompresses every weight with the package, and compares the values with
those that tune itself reads (by `tune merge --dtype f32` with an adapter of zeros). Prints the largest difference of each directory.

    pip install compressed-tensors==0.20.1 safetensors numpy
    python tests/bench/quantize_check.py MODEL ROWS.jsonl --tune ./tune [--group 16]
"""
import argparse, json, os, subprocess, tempfile

import compressed_tensors
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from safetensors.torch import load_file, save_file

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("rows")
parser.add_argument("--tune", default="./tune")
parser.add_argument("--group", default="16")
options = parser.parse_args()
KINDS = ["--method rtn", "--method rtn --asym", "--method rtn --group -1 --bits 8", "--method gptq", "--method gptq --act-order", "--method gptq --asym", "--method awq", "--method awq --sym",
         "--method int8", "--method int8 --calibrate absmax", "--method int8 --calibrate entropy", "--method rtn --skip down_proj", "--method rtn --bits 3", "--method rtn --bits 2"]


def run(*arguments):
    subprocess.run([options.tune, *arguments, "--quiet"], check=True, stderr=subprocess.DEVNULL)


def write_zero_adapter(folder, config):
    os.makedirs(folder)
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 1, "lora_alpha": 1, "target_modules": "model.layers.0.self_attn.q_proj", "base_model_name_or_path": options.model}, file)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    heads = config["num_attention_heads"] * (config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    save_file({name + "A.weight": torch.zeros(1, config["hidden_size"]), name + "B.weight": torch.zeros(heads, 1)}, os.path.join(folder, "adapter_model.safetensors"))


def check(folder, dense):
    with open(os.path.join(folder, "config.json")) as file:
        settings = json.load(file)["quantization_config"]
    settings.pop("quant_method")
    config = QuantizationConfig.model_validate({**settings, "quant_method": "compressed-tensors"})
    scheme = config.config_groups["group_0"]
    compressor = BaseCompressor.get_value_from_registry(config.format)
    raw, ours = load_file(os.path.join(folder, "model.safetensors")), load_file(os.path.join(dense, "model.safetensors"))
    worst, n = 0.0, 0
    for scale in [name for name in raw if name.endswith(".weight_scale")]:
        path = scale[: -len(".weight_scale")]
        parts = {name[len(path) + 1 :]: value for name, value in raw.items() if name.startswith(path + ".")}
        parts["weight_scale"] = parts["weight_scale"].float()
        weight = compressor.decompress(parts, scheme)["weight"]
        worst = max(worst, (weight.float() - ours[path + ".weight"]).abs().max().item())
        n += 1
    plain = [name for name in ours if name + "_scale" not in raw]
    assert all(torch.equal(raw[name].float(), ours[name]) for name in plain if name in raw)
    return n, worst


print("compressed-tensors", compressed_tensors.__version__)
with tempfile.TemporaryDirectory() as folder, open(os.path.join(options.model, "config.json")) as file:
    zero = os.path.join(folder, "zero")
    write_zero_adapter(zero, json.load(file))
    for i, kind in enumerate(KINDS):
        made, dense = os.path.join(folder, f"made{i}"), os.path.join(folder, f"dense{i}")
        grouped = [] if "int8" in kind or "--group" in kind else ["--group", options.group]
        run("quantize", options.model, "-o", made, *kind.split(), *grouped, "--rows", options.rows)
        run("merge", made, zero, "-o", dense, "--dtype", "f32")
        try:
            n, worst = check(made, dense)
            print(f"{kind}: {n} weights, largest difference {worst:g}")
        except Exception as fault:
            print(f"{kind}: {type(fault).__name__}: {fault}")
