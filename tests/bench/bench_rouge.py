# SPDX-License-Identifier: Apache-2.0
"""ROUGE-L of 52,002 instructions, each with all kept before it: compares `tune data filter` with the rouge-score package, on one thread each and on the same texts: make bench-peers.

    python tests/bench/bench_rouge.py --tune ./tune [--pairs N]

The package is called as in Stanford Alpaca's generate_instruction.py: rouge_scorer._score_lcs on split words. The scores of rejected texts are compared with the package's, too.
"""
import argparse, importlib.util, json, random, resource, subprocess, sys, tempfile, time

TEXTS, FAMILIES, WORDS = 52002, 9000, 20000


def make_rows(path):
    """Instructions in families: one text of 8 to 60 words by Zipf's law, in which each member has changed up to two thirds of the words."""
    draw = random.Random(1)
    zipf = lambda: f"w{int(WORDS ** draw.random()) - 1}"
    families = [[zipf() for _ in range(draw.randint(8, 60))] for _ in range(FAMILIES)]
    with open(path, "w") as file:
        for i in range(TEXTS):
            changed = 0.67 * draw.random()
            text = " ".join(zipf() if draw.random() < changed else word for word in draw.choice(families))
            file.write(json.dumps({"id": str(i), "instruction": text, "output": "x"}) + "\n")


def cpu_of(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.check_call(command, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tune", required=True)
    parser.add_argument("--pairs", type=int, default=20000)
    options = parser.parse_args()
    if importlib.util.find_spec("rouge_score") is None:
        print("ROUGE-L: left out: rouge_score is not installed")
        return 0
    from rouge_score import rouge_scorer, tokenize
    with tempfile.TemporaryDirectory() as folder:
        rows, kept, rejected = f"{folder}/rows.jsonl", f"{folder}/kept.jsonl", f"{folder}/rejected.jsonl"
        make_rows(rows)
        command = [options.tune, "data", "filter", rows, "--only", "--threads", "1", "--quiet", "-o", kept, "--rejected", rejected]
        reading = cpu_of(command + ["--empty", "true"])
        ours = cpu_of(command + ["--rouge-l", "{threshold: 0.7, on: instruction}"]) - reading
        texts = [json.loads(line)["instruction"] for line in open(rows)]
        lines = [json.loads(line) for line in open(rejected)]
        gone = {int(line["row"]["id"]) for line in lines}
        pairs, before = 0, 0
        for i in range(len(texts)):
            pairs += before
            before += i not in gone
    split = [tokenize.tokenize(text, None) for text in texts]
    draw = random.Random(2)
    chosen = [(draw.choice(split), draw.choice(split)) for _ in range(options.pairs)]
    began = time.process_time()
    for a, b in chosen:
        rouge_scorer._score_lcs(a, b)
    theirs = options.pairs / (time.process_time() - began)
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=False)
    error = max(abs(scorer.score(line["nearest"]["text"], line["row"]["instruction"])["rougeL"].fmeasure - line["score"]) for line in draw.sample(lines, min(2000, len(lines))))
    ratio = pairs / ours / theirs
    print(f"ROUGE-L of {len(texts)} instructions: {pairs / 1e6:.0f} million pairs in {ours:.1f} s of one thread, {pairs / ours:.3g} a second; rouge-score {theirs:.3g}: {ratio:.0f} times as fast"
          f" (target 100: {'holds' if ratio >= 100 else 'does not hold'}); largest difference of {min(2000, len(lines))} scores {error:.2g} (target 1e-12: {'holds' if error <= 1e-12 else 'does not hold'})")
    return 0 if ratio >= 100 and error <= 1e-12 else 1


if __name__ == "__main__":
    sys.exit(main())
