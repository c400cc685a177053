# SPDX-License-Identifier: Apache-2.0
"""Rooflines of docs/lab/performance.md: operations and bytes of each op per token, from a model's shape, and the time that products or memory need for them at least.

    python3 tests/bench/roofline.py S Q L                        # at the peaks of the machine of the targets: f32 350 GF/s, bf16 2200 GF/s, 30 GB/s
    python3 tests/bench/roofline.py S --bench bench.json         # at those that `tune-bench -o` found
    python3 tests/bench/roofline.py S --check rows.json --tokens 16 --batch 2     # against `tune-bench S --work sft --profile --json --compute f32 --tokens 16 --batch 2`

The formulas are those that ops count by (op_<name>_cost): products only, a multiplication and an addition are two operations; every tensor of a call once, as it is stored.
"""
import argparse
import json

SHAPES = {  # layers, width C, query width Q, key width K, feed-forward F, vocabulary V, q/k/v biases
    "S": (30, 576, 576, 192, 1536, 49152, False),
    "Q": (24, 896, 896, 128, 4864, 151936, True),
    "L": (16, 2048, 2048, 512, 8192, 128256, False),
}
RANK, STORED, RESIDUAL, HEAD = 16, 2, 4, 64  # of LoRA; bytes of a stored weight, of the residual stream; head size


class Ops(dict):
    def add(self, name, forward, backward=(0, 0), times=1):
        row = self.setdefault(name, [0, 0, 0, 0])
        for i, value in enumerate((*forward, *backward)):
            row[i] += times * value


def training(shape, a, batch, tokens):
    """LoRA on all linear layers, per token. a: bytes of an activation."""
    layers, C, Q, K, F, V, biases = SHAPES[shape]
    n, ops, pairs = batch * tokens, Ops(), (tokens + 1) / 2
    for name, inputs, outputs, bias, first, adds in (("q k v o", C, Q, biases, True, False), ("q k v o", C, K, biases, True, False), ("q k v o", C, K, biases, True, False),
                                                     ("q k v o", Q, C, False, False, True), ("gate up down", C, F, False, False, False), ("gate up down", C, F, False, False, False),
                                                     ("gate up down", F, C, False, False, True)):  # adds: to the residual stream
        product, a_product, b_product = 2 * inputs * outputs, 2 * RANK * inputs, 2 * RANK * outputs
        branch = RESIDUAL * RANK * (inputs + outputs)
        once = (STORED * inputs * outputs + branch + (RESIDUAL * outputs if bias else 0)) / n
        for layer in range(layers):
            asks = 0 if first and layer == 0 else 1  # nobody wants the gradient of the first layer's input
            result = RESIDUAL * outputs if adds else a * outputs
            ops.add("linear: " + name, (product + a_product + b_product, a * inputs + result * (2 if adds else 1) + once),
                    (asks * (product + a_product) + a_product + 2 * b_product, a * (1 + asks) * inputs + result + once + branch / n))
    ops.add("attention", (4 * pairs * Q, 2 * a * (Q + K)), (10 * pairs * Q, 4 * a * (Q + K)), layers)
    ops.add("rms_norm", (0, (RESIDUAL + a) * C + RESIDUAL * C / n), (0, (RESIDUAL + 2 * a) * C + RESIDUAL * C / n), 2 * layers + 1)
    ops.add("rms_norm", (0, 0), (0, -(RESIDUAL + 2 * a) * C - RESIDUAL * C / n))  # the first one of all
    ops.add("activation", (0, 3 * a * F), (0, 6 * a * F), layers)
    turn = 2 * a * (Q + K) + 2 * RESIDUAL * HEAD  # of q and of k, each with its cosines and sines
    ops.add("rope", (0, turn), (0, turn), layers)
    trained = (tokens - 1) / tokens
    ops.add("token_logprobs", (4 * C * V * trained, STORED * C * V / n + (a + 4) * C), (0, (a + 4) * C))
    ops.add("embedding", (0, (STORED + RESIDUAL) * C))
    return ops


def decoding(shape, a, batch, context):
    """A step of `batch` sequences with `context` tokens before them, per token."""
    layers, C, Q, K, F, V, _ = SHAPES[shape]
    ops = Ops()
    for inputs, outputs in ((C, Q), (C, K), (C, K), (Q, C), (C, F), (C, F), (F, C)):
        ops.add("linear", (2 * inputs * outputs, STORED * inputs * outputs / batch + a * (inputs + outputs)), times=layers)
    ops.add("token_logits", (2 * C * V, STORED * C * V / batch + a * C + RESIDUAL * V))
    ops.add("attention", (4 * (context + 1) * Q, 2 * a * (Q + K) + 2 * a * context * K), times=layers)
    ops.add("all others", (0, (RESIDUAL + a) * C * (2 * layers + 1) + layers * (3 * a * F + 2 * (2 * RESIDUAL - a) * C + 2 * a * (Q + K) + 2 * RESIDUAL * HEAD)))
    return ops


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def seconds(flops, byte, gflops, read):
    return max(flops / (gflops * 1e9), byte / (read * 1e9))


def print_table(head, rows):
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def training_table(shape, batch, tokens, peaks, read):
    """One row an op: operations, bytes and least time of forward and backward together, for each dtype of activations."""
    kinds = [(name, training(shape, a, batch, tokens), gflops) for name, a, gflops in peaks]
    rows, totals = [], [0.0] * len(kinds)
    for op, (forward, _, backward, _) in kinds[0][1].items():
        cells = [op, number(forward / 1e6), number(backward / 1e6)]
        for i, (_, ops, gflops) in enumerate(kinds):
            row = ops[op]
            time = seconds(row[0], row[1], gflops, read) + seconds(row[2], row[3], gflops, read)
            totals[i] += time
            cells += [number((row[1] + row[3]) / 1e3), number(time * 1e6), "products" if (row[0] + row[2]) / gflops > (row[1] + row[3]) / read else "memory"]
        rows.append(cells)
    flops = [sum(row[k] for row in kinds[0][1].values()) for k in (0, 2)]
    last = ["**all**", number(flops[0] / 1e6), number(flops[1] / 1e6)]
    for (_, ops, gflops), total in zip(kinds, totals):
        last += [number(sum(row[1] + row[3] for row in ops.values()) / 1e3), number(total * 1e6), f"**{1 / total:,.0f} tokens/s**; products alone {gflops * 1e9 / sum(flops):,.0f}"]
    print(f"\nLoRA step, {batch} x {tokens} tokens, per token:")
    print_table(["op", "forward MF", "backward MF"] + [cell for name, _, _ in kinds for cell in (f"{name}: kB", "us", "bound")], rows + [last])


def decoding_table(shape, batches, context, gflops, read):
    kinds = [decoding(shape, 2, batch, context) for batch in batches]
    rows, totals = [], [0.0] * len(batches)
    for op in kinds[0]:
        cells = [op, number(kinds[0][op][0] / 1e6)]
        for i, ops in enumerate(kinds):
            time = seconds(*ops[op][:2], gflops, read)
            totals[i] += time
            cells += [number(ops[op][1] / 1e6), number(time * 1e6)]
        rows.append(cells)
    last = ["**all**", number(sum(row[0] for row in kinds[0].values()) / 1e6)]
    for ops, total in zip(kinds, totals):
        last += [number(sum(row[1] for row in ops.values()) / 1e6), f"{number(total * 1e6)}: **{1 / total:,.0f} tokens/s**"]
    print(f"\nDecoding behind {context} tokens, bf16, per token:")
    print_table(["op", "MF"] + [cell for batch in batches for cell in (f"batch {batch}: MB", "us")], rows + [last])


def check(shape, path, batch, tokens):
    """Operations and bytes of a profile against the formulas; what all tokens of a batch share may differ by one part in a hundred."""
    profile = {(row["op"], row["pass"]): row for row in json.loads(open(path).readline())["profile"]}
    ops, bad = training(shape, 4, batch, tokens), 0
    for op in ("linear", "attention", "rms_norm", "activation", "rope", "token_logprobs", "embedding"):
        rows = [row for name, row in ops.items() if name.split(":")[0] == op]
        for i, direction in enumerate(("forward", "backward")):
            got = profile.get((op, direction))
            if not got:
                continue
            for k, key in enumerate(("flops", "bytes")):
                want = sum(row[2 * i + k] for row in rows) * batch * tokens * (got["calls"] // max(1, calls_of(shape, op, i)))
                if abs(want - got[key]) > 0.01 * got[key]:
                    bad += 1
                    print(f"{op} {direction}: {key} {got[key]:.6g} in the profile, {want:.6g} by formula")
    print("the formulas agree" if not bad else f"{bad} differ")
    return bad


def calls_of(shape, op, backward):
    layers = SHAPES[shape][0]
    return {"linear": 4 * layers, "attention": layers, "rms_norm": 2 * layers + 1 - backward, "activation": layers, "rope": 2 * layers, "token_logprobs": 1, "embedding": 1}[op]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shapes", nargs="+", choices=SHAPES)
    parser.add_argument("--f32", type=float, default=350)
    parser.add_argument("--bf16", type=float, default=2200)
    parser.add_argument("--read", type=float, default=30)
    parser.add_argument("--bench")
    parser.add_argument("--check")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    if options.check:
        return check(options.shapes[0], options.check, options.batch, options.tokens)
    if options.bench:
        machine = json.load(open(options.bench))
        options.f32, options.bf16, options.read = machine["f32_gflops"], machine["bf16_gflops"], machine["read_gbytes_per_second"]
    for shape in options.shapes:
        print(f"\n### Shape {shape}")
        training_table(shape, options.batch, options.tokens, (("bf16", 2, options.bf16), ("f32", 4, options.f32)), options.read)
        decoding_table(shape, (1, 8, 32), 128, options.bf16, options.read)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
