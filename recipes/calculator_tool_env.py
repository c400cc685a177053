#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums with a calculator: an environment of texts for tune.

In a recipe:

    rl:
      env: {command: [python3, recipes/calculator_tool_env.py, --digits, '4'], text: true, max_turns: 4}

The policy is asked for a product or a sum. It may write <calc>12*34</calc>, and the next turn brings what the calculator says;
or it answers with "Answer: N", which ends the episode and earns 1 when N is right. The first use of the calculator on an
expression that it can compute earns 0.2, once an episode.

The protocol is that of recipes/guess_number_env.py. --plain: without messages, for a model without a chat template.
Needs Python 3.8 alone.
"""
import argparse
import ast
import json
import operator
import random
import re
import sys

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def compute(text):
    """The value of an expression of whole numbers with + - * and parentheses; None for anything else."""

    def value(node):
        if isinstance(node, ast.Expression):
            return value(node.body)
        if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**12:
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(text)

    try:
        return value(ast.parse(text.strip(), mode="eval")) if len(text) <= 200 else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


class Task:
    def __init__(self, digits, plain):
        self.digits, self.plain = digits, plain

    def reset(self, seed):
        draw = random.Random(seed)
        a, b = (draw.randint(10 ** (self.digits - 1), 10**self.digits - 1) for _ in range(2))
        sign = draw.choice("+*")
        self.result, self.used = compute(f"{a}{sign}{b}"), False
        if self.plain:
            return f"{a}{sign}{b}="
        return [
            {"role": "system", "content": "You have a calculator: write <calc>EXPRESSION</calc> and wait for its result. When you know the result, write Answer: NUMBER."},
            {"role": "user", "content": f"What is {a} {sign} {b}?"},
        ]

    def step(self, text):
        final = re.search(r"Answer:\s*(-?\d+)", text)
        if final:
            return None, float(int(final.group(1)[:30]) == self.result), True
        call = re.search(r"<calc>(.*?)(?:</calc>|$)", text, re.S)
        if not call:
            return self.say("Write <calc>EXPRESSION</calc> or Answer: NUMBER."), 0.0, False
        value = compute(call.group(1))
        if value is None:
            return self.say("The calculator knows whole numbers with + - * and parentheses."), 0.0, False
        reward = 0.0 if self.used else 0.2
        self.used = True
        return self.say(str(value)), reward, False

    def say(self, words):
        return f"\n[{words}]\n" if self.plain else {"role": "user", "content": f"<result>{words}</result>"}


def answer(request, tasks, options):
    if "open" in request:
        tasks[:] = [Task(options.digits, options.plain) for _ in range(request["open"]["copies"])]
        return {"id": "calculator", "action": "text", "observation": "text"}
    if "reset" in request:
        return {"observations": [tasks[copy].reset(seed) for copy, seed in request["reset"]]}
    rows = [(None, 0.0, False) if text is None else task.step(text) for task, text in zip(tasks, request["step"])]
    observations, rewards, terminated = map(list, zip(*rows))
    return {"observations": observations, "rewards": rewards, "terminated": terminated, "truncated": [False] * len(rows)}


def main():
    parser = argparse.ArgumentParser(description="Sums with a calculator, for tune rl", epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", type=int, default=4, help="of both numbers")
    parser.add_argument("--plain", action="store_true", help="short texts for a model without a chat template")
    options = parser.parse_args()
    tasks = []
    for line in sys.stdin:
        request = json.loads(line)
        if "close" in request:
            break
        print(json.dumps(answer(request, tasks, options)), flush=True)


if __name__ == "__main__":
    main()
