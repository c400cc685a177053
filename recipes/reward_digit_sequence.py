#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A reward program for `tune rl`: the digit sequences of verl's arithmetic task.

A prompt 'a,b:m,n' asks for the n numbers that follow a, b with the same difference, modulo m: '6,2:9,3' wants '7,3,8'.
The reward is the share of the answer that is right from its beginning on, where stopping in time counts as one character more.

    reward:
      - { type: command, command: [python3, recipes/reward_digit_sequence.py] }

Reads rows as JSON, one a line, and answers each with one line.
"""
import json
import sys


def answer(prompt):
    numbers, rule = prompt.split(":")
    before, last = map(int, numbers.split(","))
    modulus, count = map(int, rule.split(","))
    step, found = last - before, []
    for _ in range(count):
        last = (last + step) % modulus
        found.append(str(last))
    return ",".join(found)


def reward(row):
    wanted, got = answer(row["prompt"]), row["completion"]
    right = 0
    while right < min(len(wanted), len(got)) and wanted[right] == got[right]:
        right += 1
    whole = got == wanted and row["finish_reason"] == "stop"
    return {"reward": (right + whole) / (len(wanted) + 1), "whole": float(whole)}


for line in sys.stdin:
    print(json.dumps(reward(json.loads(line))), flush=True)
