#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reward of generated Python code: 1 when its row's unit tests pass, else 0. A program for

    reward:
      - { type: command, command: [python3, recipes/reward_python_tests.py], workers: 2, timeout: 20, sandbox: true, memory: 2048 }

Rows are HumanEval's: "prompt" (the beginning of a function), "test" (defines check(candidate)) and "entry_point". The completion goes on with the prompt, or holds the whole
function, plainly or between lines of ```. One answer a row: {"reward": 1 or 0, "ran": 1 when the tests were reached}.

A policy finds every way to a reward that is not the task, so the completion is judged from outside. It runs in a fresh Python of its own, which is given arguments and gives
back values: numbers, texts, lists, tuples, sets, dicts, exceptions by name. The tests run in another process, which never runs the completion, and say "passed" with a random
word that only that process and this one know. The completion does not see the tests. So none of these earns anything: writing to open descriptors and leaving early, walking
up the frames of the caller, replacing exec, compile or assert, an object that equals everything, ending the judge by a signal.
On Linux the completion starts no process and sends no signal; it may have threads. 5 seconds, 512 MiB, files of 1 MB at most, in an empty folder, its output thrown away.
Without `sandbox: true` it may use the network, read what the user may read and write what the user may write.
Tests that hand over functions, or look at what happens to their arguments, can't be judged so.
Options: --seconds S, --megabytes M. Needs Python 3.8 on Linux or macOS, and nothing else.
"""
import json
import os
import re
import sys

LONGEST = 16 << 20  # bytes of one answer

# ---- values as JSON: only plain types, so that a completion can return neither code nor an object with methods of its own ----


class CannotSend(Exception):
    pass


def pack(x):
    kind = type(x)
    if x is None or kind in (bool, int, str):
        return x
    if kind is float:
        return {"float": x.hex()}
    if kind is list:
        return [pack(y) for y in x]
    if kind in (tuple, set, frozenset, range):
        return {kind.__name__: [pack(y) for y in x]} if kind is not range else {"range": [x.start, x.stop, x.step]}
    if isinstance(x, dict):
        return {"dict": [[pack(k), pack(v)] for k, v in x.items()]}
    if kind in (bytes, bytearray):
        return {kind.__name__: x.hex()}
    if kind is complex:
        return {"complex": [x.real.hex(), x.imag.hex()]}
    for base in (bool, int, float, str, list, tuple, set):  # a kind of one of these, such as a named tuple
        if isinstance(x, base):
            return pack(base(x))
    if hasattr(x, "tolist"):
        return pack(x.tolist())  # numpy's
    if hasattr(x, "__next__"):
        return {"iterator": [pack(y) for y in x]}
    raise CannotSend("a value of type %s" % kind.__name__)


def unpack(x):
    if isinstance(x, list):
        return [unpack(y) for y in x]
    if not isinstance(x, dict):
        return x
    ((kind, value),) = x.items()
    if kind == "dict":
        return {unpack(k): unpack(v) for k, v in value}
    if kind == "float":
        return float.fromhex(value)
    if kind == "complex":
        return complex(float.fromhex(value[0]), float.fromhex(value[1]))
    if kind in ("bytes", "bytearray"):
        return {"bytes": bytes, "bytearray": bytearray}[kind].fromhex(value)
    if kind == "range":
        return range(*value)
    return {"tuple": tuple, "set": set, "frozenset": frozenset, "iterator": iter}[kind]([unpack(y) for y in value])


# ---- the process of the completion ----


def program(row):
    """The code to test: the fenced block if there is one. The prompt precedes it unless it defines the function itself."""
    code = row["completion"]
    blocks = re.findall(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", code, re.S)
    if blocks:
        code = max(blocks, key=len)
    if re.search(r"^def +%s\b" % re.escape(row["entry_point"]), code, re.M):
        return helpers(row) + "\n" + code
    return row["prompt"] + code


def helpers(row):
    """The part of the prompt before the function: imports, and functions that the tests use too."""
    return row["prompt"].split("def " + row["entry_point"])[0]


def limit(seconds, megabytes):
    import resource

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


# By machine: its number for audit, then fork, vfork; kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, ptrace, process_vm_readv, process_vm_writev; clone, fcntl, ioctl,
# prlimit64
CALLS = {
    "x86_64": (0xC000003E, (57, 58), (62, 200, 234, 129, 297, 101, 310, 311), 56, 72, 16, 302),
    "aarch64": (0xC00000B7, (), (129, 130, 131, 138, 240, 117, 270, 271), 220, 25, 29, 261),
}
PIDFD_SEND_SIGNAL, PIDFD_OPEN, CLONE3 = 424, 434, 435


def filter_calls():
    """Forbids new processes, and signals and limits for other processes. Linux only."""
    import ctypes
    import struct

    if not sys.platform.startswith("linux") or os.uname().machine not in CALLS:
        return
    audit, forks, signals, clone, fcntl, ioctl, prlimit = CALLS[os.uname().machine]
    load, equal, at_least, some, give = 0x20, 0x15, 0x35, 0x45, 0x06
    no, yes, unknown = (give, 0, 0, 0x50001), (give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x50000 | 38)
    code = [(load, 0, 0, 4), (equal, 1, 0, audit), no, (load, 0, 0, 0), (at_least, 0, 1, 0x40000000), no]
    for call in forks + signals + (PIDFD_SEND_SIGNAL, PIDFD_OPEN):
        code += [(equal, 0, 1, call), no]
    code += [(equal, 0, 1, CLONE3), unknown]
    code += [(equal, 0, 4, clone), (load, 0, 0, 16), (some, 1, 0, 0x10000), no, yes]  # a thread is fine
    code += [(equal, 0, 5, fcntl), (load, 0, 0, 24), (equal, 1, 0, 8), (equal, 0, 1, 15), no, yes]  # F_SETOWN, F_SETOWN_EX
    code += [(equal, 0, 5, ioctl), (load, 0, 0, 24), (equal, 1, 0, 0x8901), (equal, 0, 1, 0x8902), no, yes]  # the same of sockets
    code += [(equal, 0, 4, prlimit), (load, 0, 0, 16), (equal, 1, 0, 0), no, yes]
    code += [yes]
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))

    class Filter(ctypes.Structure):
        _fields_ = [("n", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    rules = Filter(len(code), ctypes.addressof(text))
    zero = ctypes.c_ulong(0)
    if prctl(38, ctypes.c_ulong(1), zero, zero, zero) != 0 or prctl(22, ctypes.c_ulong(2), ctypes.byref(rules), zero, zero) != 0:
        raise OSError("no filter of system calls")


def run_completion():
    """Reads the program, reports that it is loaded, then answers calls."""
    calls, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    first = json.loads(calls.readline())
    filter_calls()
    limit(first["seconds"], first["megabytes"])
    names = {"__name__": "solution"}
    exec(compile(first["program"], "completion", "exec"), names)
    candidate = names[first["entry_point"]]
    print("ready", file=answers, flush=True)
    for line in calls:
        try:
            arguments, named = unpack(json.loads(line))
            answer = {"value": pack(candidate(*arguments, **named))}
        except Exception as error:
            answer = {"raised": type(error).__name__}
        print(json.dumps(answer), file=answers, flush=True)


# ---- the process of the tests ----


class Ended(BaseException):
    """The completion has ended, or its output is not an answer."""


def make_candidate(calls, answers):
    def candidate(*arguments, **named):
        import builtins

        text = json.dumps(pack((arguments, named)))
        try:
            calls.write(text + "\n")
            calls.flush()
            line = answers.readline(LONGEST)
            answer = json.loads(line)
            if "value" in answer:
                return unpack(answer["value"])
            kind = getattr(builtins, str(answer["raised"]), RuntimeError)
        except Exception:
            raise Ended()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind is not AssertionError:
            raise kind("raised by the completion")
        raise RuntimeError("raised by the completion")

    return candidate


def run_tests(row, calls, answers, say, word):
    names = {"__name__": "tests"}
    if answers.readline(LONGEST) != "ready\n":
        return
    say("ran " + word)
    try:
        exec(compile(helpers(row), "prompt", "exec"), names)
    except Exception:
        pass  # the tests may do without
    candidate = names[row["entry_point"]] = make_candidate(calls, answers)
    try:
        exec(compile(row["test"], "test", "exec"), names)
        names["check"](candidate)
    except CannotSend as error:
        return say("cannot " + word + " " + str(error))
    say("passed " + word)


# ---- the worker ----


def hide():
    """Keeps other processes of the same user from reading or writing the memory of this one."""
    try:
        import ctypes

        zero = ctypes.c_ulong(0)
        ctypes.CDLL(None).prctl(4, zero, zero, zero, zero)
    except (ImportError, AttributeError, OSError):
        pass  # macOS lets nobody anyway


def judge(row, child, report, word):
    """Runs the tests in a forked process, which never runs the completion."""
    gone = os._exit
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        run_tests(row, child.stdin, child.stdout, lambda text: os.write(report, text.encode() + b"\n"), word)
    except BaseException:  # SystemExit and MemoryError of a test are no pass, too
        pass
    finally:
        gone(0)


def listen(reader, seconds):
    """The output of the judge until it ends or its time is over."""
    import select
    import time

    said, until = b"", time.monotonic() + seconds
    while len(said) < LONGEST:
        ready = select.select([reader], [], [], max(0, until - time.monotonic()))[0]
        part = os.read(reader, 4096) if ready else b""
        if not part:
            break
        said += part
    return said.decode(errors="replace").split("\n")


def score(row, seconds, megabytes):
    import secrets
    import shutil
    import signal
    import subprocess
    import tempfile

    folder, word = tempfile.mkdtemp(prefix="reward."), secrets.token_hex(16)
    reader, writer = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-I", "-B", os.path.abspath(__file__), "--completion"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        start_new_session=True,
        universal_newlines=True,
    )
    tests = os.fork()
    if tests == 0:
        os.close(reader)
        first = {"program": program(row), "entry_point": row["entry_point"], "seconds": seconds, "megabytes": megabytes}
        try:
            child.stdin.write(json.dumps(first) + "\n")
            child.stdin.flush()
        finally:
            judge(row, child, writer, word)
    os.close(writer)
    said = listen(reader, seconds)
    os.close(reader)
    os.kill(tests, signal.SIGKILL)
    os.waitpid(tests, 0)
    try:
        os.killpg(child.pid, signal.SIGKILL)  # where it may start processes, these are in its group
    except OSError:
        pass
    child.kill()
    child.stdin.close()
    child.stdout.close()
    child.wait()
    shutil.rmtree(folder, ignore_errors=True)
    for line in said:
        if line.startswith("cannot " + word):
            return {"error": "the tests hand over " + line[len("cannot " + word) + 1 :]}
    return {"reward": int("passed " + word in said), "ran": int("ran " + word in said)}


def main():
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--megabytes", type=int, default=512)
    options = parser.parse_args()
    hide()
    for line in sys.stdin:
        row = json.loads(line)
        missing = [key for key in ("prompt", "completion", "test", "entry_point") if key not in row]
        if missing:
            answer = {"error": "the row has no '%s'" % missing[0]}
        else:
            answer = score(row, options.seconds, options.megabytes)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--completion"]:
        run_completion()
    else:
        main()
