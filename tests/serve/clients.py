# SPDX-License-Identifier: Apache-2.0
"""Real clients against a running server of recipes/demo/model. Prints a line for each check, or says which client is not installed.

    python clients.py http://127.0.0.1:8000 KEY TUNE CLIENT...

TUNE: the program, for what tune score says. Exit code 1 if a check fails. The model is a tiny one, so only the form of answers and their equality are
checked, not what they say."""
import importlib.util, json, os, socket, subprocess, sys, tempfile, time, urllib.request

url, key, tune = sys.argv[1:4]
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


    if hasattr(client.chat.completions, "parse"):
        form_with_openai(client, name)
        responses_with_openai(client, name, text)


def form_with_openai(client, name):
    from typing import Literal
    from pydantic import BaseModel

    class Sum(BaseModel):
        word: Literal["yes", "no"]
        digits: list[Literal[1, 2, 3]]

    parsed = client.chat.completions.parse(model=name, messages=question, response_format=Sum, seed=1, max_tokens=200, temperature=1.5)
    check("openai parse", parsed.choices[0].message.parsed.word in ("yes", "no"), parsed)
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"day": {"enum": [1, 2]}},
                                                                            "required": ["day"], "additionalProperties": False}}}
    ask = dict(model=name, tools=[tool], tool_choice="required", parallel_tool_calls=False, seed=1, max_tokens=200)
    message = client.chat.completions.create(messages=question, **ask).choices[0].message
    call = message.tool_calls[0]
    check("openai tool call", call.function.name == "look" and json.loads(call.function.arguments)["day"] in (1, 2), call)
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    second = client.chat.completions.create(messages=question + [message, result], **ask).choices[0].message
    check("openai second turn with a tool's result", second.tool_calls[0].function.name == "look", second)


def responses_with_openai(client, name, chat_text):
    ask = dict(model=name, input="12+34=", max_output_tokens=12, temperature=0.8, extra_body={"seed": 3})
    whole = client.responses.create(**ask)
    check("openai responses", whole.output_text == chat_text and whole.usage.total_tokens > 0, (whole, chat_text))
    events = list(client.responses.create(stream=True, **ask))
    check("openai responses stream", "".join(e.delta for e in events if e.type == "response.output_text.delta") == chat_text, events)
    last = events[-1].response
    check("openai responses ends", last.output_text == chat_text and last.status == whole.status, last)
    tool = {"type": "function", "name": "look", "strict": True,
            "parameters": {"type": "object", "properties": {"day": {"enum": [1, 2]}}, "required": ["day"], "additionalProperties": False}}
    ask = dict(model=name, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200, extra_body={"seed": 1})
    call = client.responses.create(input="12+34=", **ask).output[0]
    check("openai responses call", call.type == "function_call" and json.loads(call.arguments)["day"] in (1, 2), call)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    second = client.responses.create(input=[{"role": "user", "content": "12+34="}, call, result], **ask).output[0]
    check("openai responses second turn", second.type == "function_call", second)


def with_anthropic():
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
    ask = dict(model="model", messages=question, max_tokens=12, temperature=0.8, extra_body={"seed": 3})
    whole = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        final = stream.get_final_message()
    check("anthropic messages", whole.content[0].type == "text" and whole.usage.output_tokens > 0, whole)
    check("anthropic stream", final.content[0].text == whole.content[0].text and final.stop_reason == whole.stop_reason, (final, whole))
    check("anthropic count", client.messages.count_tokens(model="model", messages=question).input_tokens == whole.usage.input_tokens)
    tool = {"name": "look", "input_schema": {"type": "object", "properties": {"day": {"enum": [1, 2]}}, "required": ["day"], "additionalProperties": False}}
    ask = dict(model="model", tools=[tool], tool_choice={"type": "any", "disable_parallel_tool_use": True}, max_tokens=200, extra_body={"seed": 1})
    use = client.messages.create(messages=question, **ask)
    check("anthropic tool use", use.stop_reason == "tool_use" and use.content[0].input["day"] in (1, 2), use)
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.content[0].id, "content": "rain"}]}
    with client.messages.stream(messages=question + [{"role": "assistant", "content": use.content}, result], **ask) as stream:
        check("anthropic second turn", stream.get_final_message().content[0].input["day"] in (1, 2))
    try:
        client.messages.create(model="none", max_tokens=1, messages=question)
        check("anthropic NotFoundError", False, "no error")
    except anthropic.NotFoundError as error:
        check("anthropic NotFoundError", error.body["error"]["type"] == "not_found_error", error.body)


def with_langchain():
    from langchain_core.messages import ToolMessage
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    class Day(BaseModel):
        """A day."""

        day: bool

    model = ChatOpenAI(base_url=base, api_key=key, model="model", max_tokens=200, seed=1, temperature=0.5, max_retries=0)
    text = model.invoke("12+34=").content
    check("langchain invoke", isinstance(text, str))
    check("langchain stream", "".join(piece.content for piece in model.stream("12+34=")) == text)
    check("langchain structured output", isinstance(model.with_structured_output(Day, method="json_schema").invoke("12+34=").day, bool))
    asking = model.bind_tools([Day], tool_choice="required", parallel_tool_calls=False)
    first = asking.invoke("12+34=")
    check("langchain tool call", first.tool_calls[0]["name"] == "Day" and isinstance(first.tool_calls[0]["args"]["day"], bool), first)
    second = asking.invoke([("user", "12+34="), first, ToolMessage("rain", tool_call_id=first.tool_calls[0]["id"])])
    check("langchain second turn with a tool's result", second.tool_calls[0]["name"] == "Day", second)


def with_litellm():
    import litellm

    ask = dict(model="openai/model", api_base=base, api_key=key, messages=question, max_tokens=8, seed=1)
    text = litellm.completion(**ask).choices[0].message.content
    pieces = [c.choices[0].delta.content or "" for c in litellm.completion(stream=True, **ask)]
    check("litellm completion and stream", "".join(pieces) == (text or ""), (pieces, text))


def scores_of_tune(rows):
    """The log-probabilities of tokens that tune score computes, a list for each row of ids."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps({"ids": ids}) + "\n" for ids in rows)
        file.flush()
        out = subprocess.run([tune, "score", "recipes/demo/model", file.name, "--quiet"], check=True, capture_output=True, text=True).stdout
    return [json.loads(line)["logprobs"] for line in out.splitlines()]


def with_lm_eval():
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    model = LocalCompletionsAPI(base_url=base + "/completions", model="model", auth_token=key, max_length=256)
    check("lm-eval finds the server's tokenizer", model.tokenizer_backend == "remote", model.tokenizer_backend)
    pairs = [("12+34=", "46"), ("7*8=", "56"), ("12+34=", " forty-six."), ("1", "2")]
    scores = model.loglikelihood([Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)])
    halves = [model._encode_pair(*pair) for pair in pairs]
    wanted = [sum(row[len(context):]) for (context, _), row in zip(halves, scores_of_tune([a + b for a, b in halves]))]
    check("lm-eval loglikelihood equals tune score", [score for score, _ in scores] == wanted, (scores, wanted))
    many = LocalCompletionsAPI(base_url=base + "/completions", model="model", auth_token=key, max_length=256, num_concurrent=4, batch_size=2)
    again = many.loglikelihood([Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)])
    check("lm-eval the same at once", list(again) == list(scores), (again, scores))
    texts = model.generate_until([Instance("generate_until", {}, ("12+34=", {"until": ["\n"], "max_gen_toks": 8}), 0)])
    check("lm-eval generate_until", isinstance(texts[0], str) and "\n" not in texts[0], texts)


def fetch(address, body=None, key=None):
    headers = {"Content-Type": "application/json"} | ({"Authorization": "Bearer " + key} if key else {})
    return urllib.request.urlopen(urllib.request.Request(address, body and json.dumps(body).encode(), headers), timeout=60)


def metric(name):
    return float(next(line.split()[1] for line in fetch(url + "/metrics", key=key).read().decode().splitlines() if line.startswith(name + " ")))


def text_of_stream(reply):
    events = [json.loads(line[6:]) for line in reply.read().decode().splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event.get("choices"))


def with_open_webui():
    """Its server, asked as its page asks it."""
    if not importlib.util.find_spec("open_webui"):
        raise ImportError(name="open_webui")
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port = any_port.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder, open(folder + "/log", "w") as log:
        settings = dict(FROM_INIT_PY="true", DATA_DIR=folder, OPENAI_API_BASE_URL=base, OPENAI_API_KEY=key, WEBUI_AUTH="False", WEBUI_SECRET_KEY="x",
                        ENABLE_OLLAMA_API="False", OFFLINE_MODE="True", HF_HUB_OFFLINE="1", RAG_EMBEDDING_ENGINE="openai", DO_NOT_TRACK="true")
        command = [sys.executable, "-m", "uvicorn", "open_webui.main:app", "--host", "127.0.0.1", "--port", str(port)]
        program = subprocess.Popen(command, env=os.environ | settings, stdout=log, stderr=log, cwd=folder)
        try:
            talk_to_open_webui(f"http://127.0.0.1:{port}", program, folder + "/log")
        finally:
            program.kill()
            program.wait()


def talk_to_open_webui(webui, program, log):
    until = time.monotonic() + 180
    while True:
        try:
            fetch(webui + "/health")
            break
        except OSError:
            if program.poll() is not None or time.monotonic() > until:
                raise RuntimeError("open-webui does not start: " + open(log).read()[-600:])
            time.sleep(0.5)
    token = json.load(fetch(webui + "/api/v1/auths/signin", {"email": "", "password": ""}))["token"]
    check("open-webui models", [m["id"] for m in json.load(fetch(webui + "/api/models", key=token))["data"]] == ["model"])
    ask = {"model": "model", "stream": True, "messages": question, "max_tokens": 20, "seed": 3, "temperature": 1.5}
    direct = text_of_stream(fetch(base + "/chat/completions", ask, key))
    check("open-webui streams the same answer", text_of_stream(fetch(webui + "/api/chat/completions", ask, token)) == direct)
    title = {"model": "model", "messages": question + [{"role": "assistant", "content": "46"}]}
    check("open-webui asks for a title", json.load(fetch(webui + "/api/v1/tasks/title/completions", title, token))["choices"])
    before = metric("tune_cancelled_total")
    reply = fetch(webui + "/api/chat/completions", ask | {"max_tokens": 3000, "ignore_eos": True}, token)
    reply.read(64)
    reply.close()
    for _ in range(200):
        if metric("tune_cancelled_total") > before:
            break
        time.sleep(0.05)
    check("open-webui stops an answer", metric("tune_cancelled_total") > before and metric("tune_requests_running") == 0)


known = {"openai": with_openai, "langchain-openai": with_langchain, "litellm": with_litellm, "anthropic": with_anthropic, "lm-eval": with_lm_eval, "open-webui": with_open_webui}
for client in sys.argv[4:]:
    run(client, known[client])
print(f"[  PASSED  ] {passed} test(s).")
if failed:
    print(f"[  FAILED  ] {failed} test(s).")
if skipped:
    print(f"[  SKIPPED ] {skipped} test(s).")
sys.exit(failed > 0)
