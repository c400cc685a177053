#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Guess the number: an environment of texts for tune.

In a recipe:

    rl:
      env: {command: [python3, recipes/guess_number_env.py, --high, '20'], text: true, max_turns: 8}

The policy is told the range and answers with a number; it hears "higher" or "lower" until it has found the number. What it
earns: 1 when the number is found, less 0.1 for every further turn it took, 0.1 for a turn with a number in the range that was
still possible, and -0.1 for a turn without any.

tune asks in JSON lines on stdin, and is answered with one line each on stdout (docs/protocols.md):

    {"open": {"copies": 2}}            -> {"id", "action": "text", "observation": "text"}
    {"reset": [[0, 71], [1, 71]]}      -> {"observations": [...]}          pairs of copy and seed; a seed is an episode
    {"step": ["I say 5", null]}        -> {"observations", "rewards", "terminated", "truncated"}, lists over the copies;
                                          null: this copy's episode has ended and it rests
    {"close": true}                    no answer

--plain: short texts for a model without a chat template. Needs Python 3.8 alone.
"""
import argparse
import json
import random
import re
import sys


class Game:
    def __init__(self, high, plain):
        self.high, self.plain = high, plain

    def reset(self, seed):
        self.number = random.Random(seed).randint(1, self.high)
        self.least, self.most, self.turns = 1, self.high, 0
        if self.plain:
            return f"1-{self.high}? "
        return f"I think of a whole number from 1 to {self.high}. Guess it: answer with a number alone."

    def say(self, words):
        return f"\n{words}? " if self.plain else f"{words.capitalize()}. Guess again."

    def step(self, text):
        self.turns += 1
        found = re.search(r"\d+", text)
        guess = int(found.group()[:9]) if found else None
        if guess == self.number:
            return None, 1.0 - 0.1 * (self.turns - 1), True
        if guess is None:
            return self.say("a number"), -0.1, False
        possible = self.least <= guess <= self.most
        if guess < self.number:
            self.least = max(self.least, guess + 1)
        else:
            self.most = min(self.most, guess - 1)
        return self.say("higher" if guess < self.number else "lower"), 0.1 if possible else 0.0, False


def answer(request, games, options):
    if "open" in request:
        games[:] = [Game(options.high, options.plain) for _ in range(request["open"]["copies"])]
        return {"id": "guess-number", "action": "text", "observation": "text"}
    if "reset" in request:
        return {"observations": [games[copy].reset(seed) for copy, seed in request["reset"]]}
    rows = [(None, 0.0, False) if text is None else game.step(text) for game, text in zip(games, request["step"])]
    observations, rewards, terminated = map(list, zip(*rows))
    return {"observations": observations, "rewards": rewards, "terminated": terminated, "truncated": [False] * len(rows)}


def main():
    parser = argparse.ArgumentParser(description="Guess the number, for tune rl", epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--high", type=int, default=20, help="largest number")
    parser.add_argument("--plain", action="store_true", help="short texts for a model without a chat template")
    options = parser.parse_args()
    games = []
    for line in sys.stdin:
        request = json.loads(line)
        if "close" in request:
            break
        print(json.dumps(answer(request, games, options)), flush=True)


if __name__ == "__main__":
    main()
