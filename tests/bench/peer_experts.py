# SPDX-License-Identifier: Apache-2.0
"""Steps of LoRA on the attention of a model with experts, by transformers and PEFT in a plain loop: what `tune-bench MODEL --work sft` measures.

    tune init CONFIG -o DIR && tune-bench DIR --work sft --steps 2 && python tests/bench/peer_experts.py DIR

Prints one JSON line. The projections are those that `lora.target_modules: all-linear` takes there; routers and experts are frozen."""
import argparse, json, os, statistics, time

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--tokens", type=int, default=512)
parser.add_argument("--steps", type=int, default=2)
parser.add_argument("--dtype", default="bfloat16")
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
options = parser.parse_args()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import peft, torch, transformers  # noqa: E402

torch.set_num_threads(options.threads)
torch.manual_seed(0)
model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype))
model.config.use_cache = False
model = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM"))
model.train()
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0)
ids = torch.randint(3, model.config.vocab_size - 1, (options.batch, options.tokens))
seconds = []
for step in range(options.steps + 1):
    began = time.perf_counter()
    model(input_ids=ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    seconds.append(time.perf_counter() - began)
timed = seconds[1:]
print(json.dumps({"peer": "transformers+peft", "versions": [transformers.__version__, peft.__version__, torch.__version__], "dtype": options.dtype, "threads": options.threads,
                  "seconds_per_step": round(statistics.median(timed), 3), "tokens_per_second": round(options.batch * options.tokens * len(timed) / sum(timed), 2)}))
