# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of fuzz_quantized: for each form of quantised weights the quantization_config in one line, then a small safetensors file.
Run from the root: python3 tests/fuzz/quantized_fixtures.py"""
import json
import struct

SIZES = {"I32": 4, "I64": 8, "F32": 4, "F16": 2, "U8": 1, "I8": 1, "F8_E4M3": 1}


def tensor(dtype, shape, data=None):
    n = SIZES[dtype]
    for size in shape:
        n *= size
    if data is None:
        data = struct.pack("<f", 0.5) * (n // 4) if dtype == "F32" else bytes((37 * i + 11) % 113 for i in range(n))
    assert len(data) == n
    return dtype, shape, data


def ints(dtype, *values):
    return tensor(dtype, [len(values)], struct.pack("<%d%s" % (len(values), "q" if dtype == "I64" else "i"), *values))


def save(name, settings, tensors):
    header, at = {}, 0
    for key, (dtype, shape, data) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open("tests/fuzz/quantized/" + name, "wb") as out:
        out.write(json.dumps(settings, separators=(",", ":")).encode() + b"\n" + struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            out.write(data)


def state(kind, nested):
    fields = {"quant_type": kind, "blocksize": 32, "dtype": "float32", "shape": [4, 24]}
    if nested:
        fields.update(nested_blocksize=256, nested_dtype="float32", nested_offset=0.25)
    text = json.dumps(fields, separators=(",", ":")).encode()
    return tensor("U8", [len(text)], text)


def four(kind, nested):
    parts = {
        "a.weight": tensor("U8", [48, 1]),
        "a.weight.quant_map": tensor("F32", [16]),
        "a.weight.quant_state.bitsandbytes__" + kind: state(kind, nested),
        "a.weight.absmax": tensor("U8" if nested else "F32", [3]),
    }
    if nested:
        parts["a.weight.nested_absmax"] = tensor("F32", [1])
        parts["a.weight.nested_quant_map"] = tensor("F32", [256])
    return parts


def packed(symmetric):
    parts = {
        "a.weight_packed": tensor("I32", [8, 4]),
        "a.weight_scale": tensor("F16", [8, 2]),
        "a.weight_shape": ints("I64", 8, 32),
    }
    if not symmetric:
        parts["a.weight_zero_point"] = tensor("I32", [1, 2])
        parts["a.weight_g_idx"] = ints("I32", *[i // 2 % 2 for i in range(32)])
    return parts


GPTQ = {"a.qweight": tensor("I32", [4, 8]), "a.qzeros": tensor("I32", [2, 1]), "a.scales": tensor("F16", [2, 8])}
GROUPS = {"config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 16}}}}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}
save("gptq", {"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": True}, GPTQ)
save("gptq_order", {"quant_method": "gptq", "bits": 3, "checkpoint_format": "gptq_v2"},
     {"a.qweight": tensor("I32", [3, 32]), "a.qzeros": tensor("I32", [2, 3]), "a.scales": tensor("F32", [2, 32]),
      "a.g_idx": ints("I32", *[i % 2 for i in range(32)])})
save("awq", {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"},
     {"a.qweight": tensor("I32", [32, 1]), "a.qzeros": tensor("I32", [2, 1]), "a.scales": tensor("F16", [2, 8])})
save("nf4", BNB, four("nf4", False))
save("nf4_nested", BNB, four("nf4", True))
save("fp4", BNB, four("fp4", True))
save("int8", {"quant_method": "bitsandbytes", "load_in_8bit": True},
     {"a.weight": tensor("I8", [4, 6]), "a.SCB": tensor("F32", [4]), "a.weight_format": tensor("U8", [], b"\0")})
save("packed", {"quant_method": "compressed-tensors", "format": "pack-quantized", **GROUPS}, packed(True))
save("packed_order", {"quant_method": "compressed-tensors", "format": "pack-quantized", **GROUPS}, packed(False))
save("bytes", {"quant_method": "compressed-tensors", "format": "int-quantized"},
     {"a.weight": tensor("I8", [4, 6]), "a.weight_scale": tensor("F32", [4, 1]), "a.weight_zero_point": tensor("I8", [4, 1])})
save("floats", {"quant_method": "compressed-tensors", "format": "float-quantized"},
     {"a.weight": tensor("F8_E4M3", [4, 6]), "a.weight_scale": tensor("F32", [1])})
save("fp8", {"quant_method": "fp8", "weight_block_size": [4, 4]},
     {"a.weight": tensor("F8_E4M3", [6, 10]), "a.weight_scale_inv": tensor("F32", [2, 3])})
save("mxfp4", {"quant_method": "mxfp4"}, {"a_blocks": tensor("U8", [2, 3, 1, 16]), "a_scales": tensor("U8", [2, 3, 1])})
save("ggml", {"quant_method": "ggml", "types": {"a": "q8_0", "b": "q4_k"}},
     {"a": tensor("U8", [2, 68]), "b": tensor("U8", [1, 144]), "c": tensor("F32", [3])})
