# SPDX-License-Identifier: Apache-2.0
"""Distillation by `tune` and by TRL in turn on one machine: the same models, rows, batch, lengths and divergence, every weight of the student trained. Prints seconds a step of both, and
their ratio.

    pip install torch transformers trl datasets accelerate
    python tests/bench/distil_trl.py --tune ./tune --tokenizer DIR --rows gsm8k/train.jsonl --out DIR [--work own|rows] [--steps 4] [--repeat 2]

own: TRL's DistillationTrainer, whose student is trained on its own samples, and `tune rl` with rl.algorithm=gkd and rl.lmbda=1. rows: TRL's GKDTrainer with lmbda 0, and `tune sft` with
distil.loss=jsd. The models have random weights in the shape of SmolLM2-135M; speed does not depend on them. The first step is not counted.
"""
import argparse, json, os, shutil, subprocess, sys, time

parser = argparse.ArgumentParser()
parser.add_argument("--tune", default="./tune")
parser.add_argument("--tokenizer", required=True)
parser.add_argument("--rows", required=True)
parser.add_argument("--out", required=True)
parser.add_argument("--work", choices=("own", "rows"), default="own")
parser.add_argument("--new", type=int, default=64, help="tokens of a sample")
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--repeat", type=int, default=2)
parser.add_argument("--layers", type=int, default=30)
parser.add_argument("--student-layers", type=int, default=15)
parser.add_argument("--width", type=int, default=576)
parser.add_argument("--compute", default="f32")
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--peer", action="store_true", help="only TRL's part, as a process of its own")
options = parser.parse_args()
TEACHER, STUDENT, ROWS = (os.path.join(options.out, name) for name in ("teacher", "student", "rows.jsonl"))
MAX_LENGTH = 512


def shape(layers):
    heads = options.width // 64
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": options.width, "intermediate_size": options.width * 8 // 3, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": max(heads // 3, 1), "head_dim": 64, "vocab_size": 49152, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "float32"}


def prepare():
    os.makedirs(options.out, exist_ok=True)
    for folder, layers in ((TEACHER, options.layers), (STUDENT, options.student_layers)):
        if os.path.exists(folder):
            continue
        config = os.path.join(options.out, "config.json")
        with open(config, "w") as file:
            json.dump(shape(layers), file)
        subprocess.run([options.tune, "init", config, "-o", folder, "--quiet"], check=True)
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
            if os.path.exists(os.path.join(options.tokenizer, name)):
                shutil.copy(os.path.join(options.tokenizer, name), folder)
    with open(options.rows) as source, open(ROWS, "w") as rows:
        for line in source.readlines()[: options.batch * (options.steps + 1)]:
            row = json.loads(line)
            rows.write(json.dumps({"messages": [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}]}) + "\n")


def ours():
    run = os.path.join(options.out, "run")
    common = [f"model.path={STUDENT}", "lora=null", f"model.compute={options.compute}", f"data.train={ROWS}", "data.shuffle=false", f"data.max_length={MAX_LENGTH}", "data.truncation=keep_start",
              f"train.max_steps={options.steps + 1}", "train.learning_rate=1e-5", "train.save_every=0", "train.save_last=false", f"distil.teacher={TEACHER}", f"output={run}",
              f"threads={options.threads}"]
    own = ["rl.algorithm=gkd", "rl.lmbda=1", "rl.beta=0.5", "rl.num_generations=1", f"rl.prompts_per_step={options.batch}", f"generate.max_new_tokens={options.new}", "rl.samples_every=0"]
    rows = [f"train.batch_size={options.batch}", "distil.loss=jsd", "distil.beta=0.5"]
    subprocess.run([options.tune, *(["rl", *common, *own] if options.work == "own" else ["sft", *common, *rows]), "--force", "--quiet"], check=True)
    lines = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"))]
    for name in os.listdir(options.out):
        if name.startswith("run"):
            shutil.rmtree(os.path.join(options.out, name))
    return (lines[-1]["seconds"] - lines[0]["seconds"]) / (len(lines) - 1)


def theirs():
    """The trainers with their defaults, but for the settings above and no gradient checkpointing, which would slow them."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(options.threads)
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", CUDA_VISIBLE_DEVICES="", TRL_EXPERIMENTAL_SILENCE="1")
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    torch.set_num_threads(options.threads)
    times = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            self.began = time.perf_counter()

        def on_step_end(self, *_, **__):
            times.append(time.perf_counter() - self.began)

    dtype = torch.float32 if options.compute == "f32" else torch.bfloat16
    load = lambda folder: AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    common = dict(output_dir=os.path.join(options.out, "trl"), use_cpu=True, max_steps=options.steps + 1, per_device_train_batch_size=options.batch, report_to="none", save_strategy="no",
                  logging_steps=1, disable_tqdm=True, learning_rate=1e-5, beta=0.5, temperature=1.0, bf16=options.compute == "bf16", gradient_checkpointing=False)
    rows = [json.loads(line) for line in open(ROWS)]
    named = dict(model=load(STUDENT), teacher_model=load(TEACHER), processing_class=AutoTokenizer.from_pretrained(STUDENT), callbacks=[Clock()])
    if options.work == "own":
        from trl import DistillationConfig, DistillationTrainer
        prompts = Dataset.from_list([{"prompt": row["messages"][:1]} for row in rows])
        trainer = DistillationTrainer(args=DistillationConfig(max_completion_length=options.new, shuffle_dataset=False, **common), train_dataset=prompts, **named)
    else:
        from trl.experimental.gkd import GKDConfig, GKDTrainer
        trainer = GKDTrainer(args=GKDConfig(lmbda=0.0, max_length=MAX_LENGTH, **common), train_dataset=Dataset.from_list(rows), **named)
    output, sys.stdout = sys.stdout, sys.stderr
    trainer.train()
    sys.stdout = output
    print(json.dumps({"seconds_per_step": sum(times[1:]) / len(times[1:])}))


if options.peer:
    theirs()
    sys.exit()
prepare()
found = {"tune": [], "trl": []}
for turn in range(options.repeat):
    peer = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--peer"], check=True, stdout=subprocess.PIPE, text=True)
    found["trl"].append(json.loads(peer.stdout.splitlines()[-1])["seconds_per_step"])
    found["tune"].append(ours())
    print(f"tune {found['tune'][-1]:.2f} s a step   trl {found['trl'][-1]:.2f}", flush=True)
best = {name: min(seconds) for name, seconds in found.items()}
print(f"best of {options.repeat}: tune {best['tune']:.2f}, trl {best['trl']:.2f}, ratio {best['trl'] / best['tune']:.2f}")
