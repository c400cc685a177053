# SPDX-License-Identifier: Apache-2.0
"""Streams of text completions, N at a time: tokens per second, and the time to the first token.

    python streams.py URL N TOKENS [SECONDS]

First N streams begin together, each of TOKENS tokens after a prompt of 128: the rate is that of the interval in which all of them are active, from
the first token of the last one to the end of the first one that ends, as tune-bench measures decoding. Then, for SECONDS, each of N clients sends one
request after another: tokens of all answers per second, and the median and the 99th percentile of the time from a request to its first token.
All prompts differ, also from run to run, so nothing is shared between them. Prints one line of JSON. It works with any server that has OpenAI's /v1/completions, takes ids as a
prompt, and knows `ignore_eos`."""
import json, random, selectors, socket, sys, time
from urllib.parse import urlsplit

CONTEXT, FIRST_ID, LAST_ID = 128, 5, 250  # ids that any vocabulary has


class Stream:
    """A connection with one streamed request."""

    def __init__(self, address, number, tokens):
        ids = random.Random(f"{time.time_ns()} {number}").choices(range(FIRST_ID, LAST_ID), k=CONTEXT)
        body = json.dumps({"prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True, "seed": number,
                           "cache_prompt": False, "stream_options": {"include_usage": True}})
        self.bytes, self.first, self.last, self.events, self.tokens = b"", None, None, 0, tokens
        self.socket = socket.create_connection(address)
        self.began = time.monotonic()
        self.socket.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nContent-Type: application/json\r\n"
                            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

    def read(self):
        """What has come. False: the answer has ended. Whole events are counted and forgotten."""
        piece = self.socket.recv(1 << 16)
        self.bytes += piece
        if self.first is None and self.bytes and not self.bytes.startswith(b"HTTP/1.1 200"):
            sys.exit("no answer: " + self.bytes.decode(errors="replace")[:300])
        events = self.bytes.count(b'"text"')
        if events:
            now = time.monotonic()
            self.first = self.first or now
            self.last = now
            self.events += events
            self.bytes = b"HTTP/1.1 200" + self.bytes[self.bytes.rfind(b'"text"') + 6:]
        ended = not piece or b"data: [DONE]" in self.bytes
        if ended:
            self.socket.close()
            if self.first is None:
                sys.exit("an answer without a token")
        return not ended


def together(address, n, tokens):
    """Tokens per second of n streams while all of them are active. An event may have several tokens, so a stream's events are scaled."""
    watch = selectors.DefaultSelector()
    streams = [Stream(address, 1000 + i, tokens) for i in range(n)]
    times = {stream: [] for stream in streams}
    for stream in streams:
        watch.register(stream.socket, selectors.EVENT_READ, stream)
    while watch.get_map():
        for key, _ in watch.select():
            stream, before = key.data, key.data.events
            if not stream.read():
                watch.unregister(key.fileobj)
            if stream.events > before:
                times[stream].append((stream.last, stream.events - before))
    begin, end = max(s.first for s in streams), min(s.last for s in streams)
    if end <= begin:
        sys.exit("the first stream ends before the last one has begun: use more tokens")
    counted = sum(tokens / s.events * sum(k for at, k in times[s] if begin < at <= end) for s in streams)
    return counted / (end - begin)


def one_after_another(address, n, tokens, seconds):
    """Tokens per second of all answers, and the times to first tokens, sorted."""
    watch, waits, done, number, began = selectors.DefaultSelector(), [], 0, 10000, time.monotonic()

    def begin():
        nonlocal number
        number += 1
        stream = Stream(address, number, tokens)
        watch.register(stream.socket, selectors.EVENT_READ, stream)

    for _ in range(n):
        begin()
    while watch.get_map():
        for key, _ in watch.select():
            if key.data.read():
                continue
            watch.unregister(key.fileobj)
            waits.append(key.data.first - key.data.began)
            done += tokens
            if time.monotonic() - began < seconds:
                begin()
    return done / (time.monotonic() - began), sorted(waits)


parts = urlsplit(sys.argv[1])
address, n, tokens = (parts.hostname, parts.port), int(sys.argv[2]), int(sys.argv[3])
result = {"streams": n, "tokens": tokens, "together": round(together(address, n, tokens), 1)}
if len(sys.argv) > 4:
    rate, waits = one_after_another(address, n, tokens, float(sys.argv[4]))
    result |= {"requests": len(waits), "tokens_per_second": round(rate, 1), "first_token_p50": round(waits[len(waits) // 2], 4),
               "first_token_p99": round(waits[min(len(waits) - 1, len(waits) * 99 // 100)], 4)}
print(json.dumps(result))
