# SPDX-License-Identifier: Apache-2.0
"""Real clients against a running server. Prints a line for each check, or says which client is not installed.

    python clients.py http://127.0.0.1:8000 KEY

Exit code 1 if a check fails. The model is a tiny one, so only the form of answers and their equality are checked, not what they say."""
import sys

url, key = sys.argv[1], sys.argv[2]
base = url + "/v1"
failed = skipped = passed = 0
question = [{"role": "user", "content": "12+34="}]


def check(name, holds, what=""):
    global failed, passed
    passed += bool(holds)
    failed += not holds
    print("[       OK ]" if holds else "[  FAILED  ]", name, what if not holds else "")


def skip(name, why):
    global skipped
    skipped += 1
    print("skipped:", name, why)


def run(name, body):
    try:
        body()
    except ImportError as error:
        skip(name, f"is not installed ({error.name})")
    except Exception as error:  # a client's own error is a failed check, and the others still run
        check(name, False, f"{type(error).__name__}: {error}")


def with_openai():
    import openai

    client = openai.OpenAI(base_url=base, api_key=key, max_retries=0)
    name = client.models.list().data[0].id
    check("openai models", client.models.retrieve(name).id == name)
    ask = dict(model=name, messages=question, max_tokens=12, temperature=0.8, extra_body={"seed": 3})  # 1.0 has no seed of its own
    whole = client.chat.completions.create(**ask)
    text = whole.choices[0].message.content
    check("openai chat", whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens)
    pieces = [c.choices[0].delta.content or "" for c in client.chat.completions.create(stream=True, **ask) if c.choices]
    check("openai stream equals the whole", "".join(pieces) == text, (pieces, text))
    check("openai n", [c.index for c in client.chat.completions.create(n=3, **ask).choices] == [0, 1, 2])
    if tuple(int(part) for part in openai.__version__.split(".")[:2]) >= (1, 5):
        content = client.chat.completions.create(logprobs=True, top_logprobs=2, **ask).choices[0].logprobs.content
        check("openai logprobs", content and all(len(c.top_logprobs) == 2 and c.logprob <= 0 for c in content), content)
    scores = client.completions.create(model=name, prompt="12+34=46", echo=True, logprobs=1, max_tokens=0).choices[0].logprobs
    check("openai echo", scores.token_logprobs[0] is None and all(p <= 0 for p in scores.token_logprobs[1:]))
    plain = client.embeddings.create(model=name, input=["a", "b"], encoding_format="float")
    packed = client.embeddings.create(model=name, input=["a", "b"])  # base64, which the client unpacks
    check("openai embeddings", len(plain.data) == 2 and max(abs(a - b) for a, b in zip(plain.data[0].embedding, packed.data[0].embedding)) < 1e-6)
    for wrong, kind in ((dict(ask, model="none"), openai.NotFoundError), (dict(ask, temperature=-1), openai.BadRequestError)):
        try:
            client.chat.completions.create(**wrong)
            check(f"openai {kind.__name__}", False, "no error")
        except kind as error:
            check(f"openai {kind.__name__}", "message" in error.response.text)
    try:
        openai.OpenAI(base_url=base, api_key="wrong-key", max_retries=0).models.list()
        check("openai AuthenticationError", False, "no error")
    except openai.AuthenticationError:
        check("openai AuthenticationError", True)


def with_langchain():
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=base, api_key=key, model="model", max_tokens=8, seed=1, temperature=0.5, max_retries=0)
    text = model.invoke("12+34=").content
    check("langchain invoke", isinstance(text, str))
    check("langchain stream", "".join(piece.content for piece in model.stream("12+34=")) == text)


def with_litellm():
    import litellm

    ask = dict(model="openai/model", api_base=base, api_key=key, messages=question, max_tokens=8, seed=1)
    text = litellm.completion(**ask).choices[0].message.content
    pieces = [c.choices[0].delta.content or "" for c in litellm.completion(stream=True, **ask)]
    check("litellm completion and stream", "".join(pieces) == (text or ""), (pieces, text))


def with_lm_eval():
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    model = LocalCompletionsAPI(base_url=base + "/completions", model="model", tokenizer_backend=None, max_length=256)
    rows = [Instance("loglikelihood", {}, ("12+34=", "46"), i) for i in range(2)]
    check("lm-eval loglikelihood", all(score <= 0 for score, _ in model.loglikelihood(rows)))


for client, body in (("openai", with_openai), ("langchain-openai", with_langchain), ("litellm", with_litellm), ("lm-eval", with_lm_eval)):
    run(client, body)
print(f"[  PASSED  ] {passed} test(s).")
if failed:
    print(f"[  FAILED  ] {failed} test(s).")
if skipped:
    print(f"[  SKIPPED ] {skipped} test(s).")
sys.exit(failed > 0)
