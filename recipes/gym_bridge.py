#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Any Gymnasium environment for tune.

In a recipe:

    rl:
      env: {command: [python3, recipes/gym_bridge.py, LunarLander-v3, gravity=-5], timeout: 60}

or at once:

    tune mdp simulate '{command: [python3, recipes/gym_bridge.py, CartPole-v1]}' --episodes 10

Arguments: the id for gymnasium.make, then key=value pairs for it (values are Python literals where they read as
such, else text). `--import MODULE` before the id imports what registers it. Needs Python 3.9 and `pip install gymnasium`
with what the environment itself needs.

tune asks in JSON lines on stdin, and is answered with one line each on stdout (what environments print there goes to
stderr). The requests, with two copies:

    {"open": {"copies": 2}}            -> {"id", "action": SPACE, "observation": SPACE, "max_episode_steps": N or missing}
    {"reset": [[0, 71], [1, 8005]]}    -> {"observations": [...]}          pairs of copy and seed
    {"step": [1, null]}                -> {"observations", "rewards", "terminated", "truncated"}, lists over the copies;
                                          null: this copy stays as it is: its episode has ended, or others are played again by a resumed run
    {"close": true}                    no answer

SPACE is {"n": N} or {"low": [...], "high": [...]} with null for no bound. {"error": text} is an answer that ends the work.

Observations of every space become one list of numbers: boxes row by row, a Discrete's number, the parts of Tuple and
Dict one after another (Dict in the order of its keys). Actions: Discrete, MultiDiscrete and MultiBinary become one number
0..N-1 (the last part changes fastest), Box a list.
"""
import ast
import json
import math
import os
import sys


def literal(text):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False}.get(text, text)


def bounds(values):
    return [float(v) if math.isfinite(v) else None for v in values]


class Observation:
    """A space as a Discrete or as one list of numbers."""

    def __init__(self, space):
        self.kind = type(space).__name__
        self.space = space
        if self.kind == "Discrete":
            self.low, self.high = [0.0], [float(space.n) - 1]
        elif self.kind == "Box":
            self.low, self.high = bounds(space.low.ravel()), bounds(space.high.ravel())
        elif self.kind == "MultiBinary":
            self.low, self.high = [0.0] * self.count(), [1.0] * self.count()
        elif self.kind == "MultiDiscrete":
            self.low, self.high = [0.0] * self.count(), [float(n) - 1 for n in space.nvec.ravel()]
        elif self.kind in ("Tuple", "Dict"):
            spaces = space.spaces
            self.keys = sorted(spaces) if self.kind == "Dict" else range(len(spaces))
            self.parts = [Observation(spaces[key]) for key in self.keys]
            self.low = [v for part in self.parts for v in part.low]
            self.high = [v for part in self.parts for v in part.high]
        else:
            raise TypeError(f"observations of the kind {self.kind} are not numbers")

    def count(self):
        return int(math.prod(self.space.shape))

    def describe(self):
        return {"n": int(self.space.n)} if self.kind == "Discrete" else {"low": self.low, "high": self.high}

    def numbers(self, value):
        if self.kind == "Discrete":
            return [int(value) - int(self.space.start)]
        if self.kind in ("Tuple", "Dict"):
            return [v for key, part in zip(self.keys, self.parts) for v in part.numbers(value[key])]
        if self.kind == "MultiDiscrete":
            value = value - self.space.start
        return [float(v) for v in value.ravel()]

    def answer(self, value):
        numbers = self.numbers(value)
        return numbers[0] if self.kind == "Discrete" else numbers


class Action:
    """One number for what can be counted, a list for a Box."""

    def __init__(self, space):
        import numpy

        self.kind, self.space, self.numpy = type(space).__name__, space, numpy
        if self.kind == "Discrete":
            self.sizes = [int(space.n)]
        elif self.kind == "MultiDiscrete":
            self.sizes = [int(n) for n in space.nvec.ravel()]
        elif self.kind == "MultiBinary":
            self.sizes = [2] * int(math.prod(space.shape))
        elif self.kind != "Box":
            raise TypeError(f"actions of the kind {self.kind} are neither numbers nor lists of them")

    def describe(self):
        if self.kind == "Box":
            return {"low": bounds(self.space.low.ravel()), "high": bounds(self.space.high.ravel())}
        return {"n": math.prod(self.sizes)}

    def value(self, action):
        if self.kind == "Box":
            return self.numpy.asarray(action, self.space.dtype).reshape(self.space.shape)
        parts = []
        for size in reversed(self.sizes):
            action, part = divmod(action, size)
            parts.append(part)
        if self.kind == "Discrete":
            return parts[0] + int(self.space.start)
        value = self.numpy.asarray(parts[::-1], self.space.dtype).reshape(self.space.shape)
        return value + self.space.start if self.kind == "MultiDiscrete" else value


class Bridge:
    def __init__(self, env_id, arguments):
        self.env_id, self.arguments, self.envs = env_id, arguments, []

    def open(self, request):
        import gymnasium

        for _ in range(request["copies"]):
            self.envs.append(gymnasium.make(self.env_id, **self.arguments))
        self.observation = Observation(self.envs[0].observation_space)
        self.action = Action(self.envs[0].action_space)
        answer = {"id": self.env_id, "action": self.action.describe(), "observation": self.observation.describe()}
        steps = self.envs[0].spec.max_episode_steps if self.envs[0].spec else None
        return {**answer, "max_episode_steps": steps} if steps else answer

    def reset(self, pairs):
        return {"observations": [self.observation.answer(self.envs[copy].reset(seed=seed)[0]) for copy, seed in pairs]}

    def step(self, actions):
        answer = {"observations": [], "rewards": [], "terminated": [], "truncated": []}
        for env, action in zip(self.envs, actions):
            if action is None:
                row = None, 0.0, False, False
            else:
                seen, reward, terminated, truncated, _ = env.step(self.action.value(action))
                row = self.observation.answer(seen), float(reward), bool(terminated), bool(truncated)
            for values, value in zip(answer.values(), row):
                values.append(value)
        return answer

    def answer(self, request):
        for name in ("open", "reset", "step"):
            if name in request:
                return getattr(self, name)(request[name])
        raise ValueError(f"unknown request {request}")


def main():
    words = sys.argv[1:]
    while len(words) > 1 and words[0] == "--import":
        __import__(words[1])
        words = words[2:]
    if not words or words[0] in ("-h", "--help") or any("=" not in word for word in words[1:]):
        sys.exit(__doc__)
    bridge = Bridge(words[0], {key: literal(value) for key, value in (word.split("=", 1) for word in words[1:])})
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what environments print is not for tune
    for line in sys.stdin:
        request = json.loads(line)
        if "close" in request:
            break
        try:
            text = json.dumps(bridge.answer(request), allow_nan=False)
        except Exception as error:  # whatever an environment does is told by name, with the traceback on stderr
            import traceback

            traceback.print_exc()
            text = json.dumps({"error": f"{type(error).__name__}: {error}"})
        print(text, file=answers, flush=True)
    for env in bridge.envs:
        env.close()


if __name__ == "__main__":
    main()
