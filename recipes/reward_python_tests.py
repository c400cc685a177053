#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reward of generated Python code: 1 when its row's unit tests pass, else 0. A program for

    reward:
      - { type: command, command: [python3, recipes/reward_python_tests.py], workers: 2, timeout: 20, sandbox: true, memory: 2048 }

Rows are HumanEval's: "prompt" (the beginning of a function), "test" (defines check(candidate)) and "entry_point". The completion goes on with the prompt, or holds the whole
function, plainly or between lines of ```. One answer a row: {"reward": 1 or 0, "ran": 1 when the tests were reached}.
Each completion runs in a process of its own: 5 seconds, 512 MiB, files of 1 MB at most, in an empty folder, its output thrown away. Without `sandbox` it may use the network.
Options: --seconds S, --megabytes M. Needs Python 3.8 on Linux or macOS, and nothing else.
"""
import argparse
import json
import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time


def program(row):
    """The code to test: a fenced block when there is one; behind the prompt unless it defines the function itself."""
    code = row["completion"]
    blocks = re.findall(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", code, re.S)
    if blocks:
        code = max(blocks, key=len)
    if re.search(r"^def +%s\b" % re.escape(row["entry_point"]), code, re.M):
        header = row["prompt"].split("def " + row["entry_point"])[0]  # its imports and helpers
        return header + "\n" + code
    return row["prompt"] + code


def confine(folder, seconds, megabytes):
    for what, most in (
        (resource.RLIMIT_CPU, int(seconds) + 1),
        (resource.RLIMIT_AS, megabytes << 20),
        (resource.RLIMIT_FSIZE, 1 << 20),
        (resource.RLIMIT_CORE, 0),
    ):
        try:
            hard = resource.getrlimit(what)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(what, (most, most))
        except (ValueError, OSError):
            pass  # macOS has no RLIMIT_AS
    os.chdir(folder)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)


def run_tests(row, report):
    """In the child. What passes is said behind the tests, so a completion that ends the process early has not passed."""
    names = {"__name__": "solution"}
    exec(compile(program(row), "completion", "exec"), names)
    candidate = names[row["entry_point"]]
    exec(compile(row["test"], "test", "exec"), names)
    check = names["check"]
    os.write(report, b"r")
    check(candidate)
    os.write(report, b"p")


def score(row, seconds, megabytes):
    folder = tempfile.mkdtemp(prefix="reward.")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        gone = os._exit  # the completion may have put something else there
        try:
            os.setpgid(0, 0)
            os.close(reader)
            confine(folder, seconds, megabytes)
            run_tests(row, writer)
            code = 0
        except BaseException:  # SystemExit and MemoryError are wrong answers, too
            pass
        finally:
            gone(code)
    os.close(writer)
    said, until = b"", time.monotonic() + seconds
    while True:
        ready = select.select([reader], [], [], max(0, until - time.monotonic()))[0]
        part = os.read(reader, 64) if ready else b""
        if not part:
            break
        said += part
    try:
        os.killpg(child, signal.SIGKILL)
    except OSError:
        pass  # it has ended, and nothing that it started is left
    status = os.waitpid(child, 0)[1]
    os.close(reader)
    shutil.rmtree(folder, ignore_errors=True)
    passed = said == b"rp" and os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
    return {"reward": int(passed), "ran": int(said.startswith(b"r"))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--megabytes", type=int, default=512)
    options = parser.parse_args()
    for line in sys.stdin:
        row = json.loads(line)
        missing = [key for key in ("prompt", "completion", "test", "entry_point") if key not in row]
        if missing:
            answer = {"error": "the row has no '%s'" % missing[0]}
        else:
            answer = score(row, options.seconds, options.megabytes)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
