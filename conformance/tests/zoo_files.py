"""Candidates given as files that misbehave: programs (`cmd:`), recorded traces, and modules that are mapped.

The expected outcome is listed beside each, as in `zoo`."""

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from conformance.checks.trace import record, save
from conformance.goldens.golden import load_golden
from conformance.implementations.making_bert import making_bert

_PROGRAM = """
import json, os, signal, sys, time
for line in iter(sys.stdin.buffer.readline, b""):
    request = json.loads(line)
    sys.stdin.buffer.read(request["bytes"])
    kind, results = request["method"], {{"load": {{"protocol": 2}}, "next": {{"heads": []}}}}
    reply = {{"reply": request["request"], "bytes": 0, "result": results.get(kind)}}
    if kind == "call":
        {misbehaves}
    print(json.dumps(reply), flush=True)
"""
_LEFT = (
    "os.fork() or (os.setsid(), os.fork() or (open(os.environ['ZOO_MARKS'], 'a').write(f'{os.getpid()}\\n'), time.sleep(600)),"
    "os._exit(0)); time.sleep(0.2)"
)
_ELSE = "something else was written"

# Programs: what each does when it is run, the outcome and words of its reason.
PROGRAMS: Mapping[str, tuple[str, str, str]] = {
    "writes a line without end": ("[sys.stdout.write('x' * 2**20) for _ in range(2**10)]", "crash", _ELSE),
    "replies with nested lists": ("print('{\"reply\":' * 10**5, flush=True); continue", "crash", _ELSE),
    "replies twice": ("print(json.dumps(reply))", "crash", _ELSE),
    "replies to what was asked before": ("reply['reply'] -= 1", "crash", _ELSE),
    "raises an error of odd characters": (
        "reply['failure'] = {'kind': 'CandidateCrash', 'text': 'no \\u202e \\x1b[2J'}", "crash", "no",
    ),
    "announces arrays without end": ("reply['bytes'] = 2**50", "crash", _ELSE),
    "gives arrays that are none": (
        "print(json.dumps({**reply, 'bytes': 64}), '\\xff' * 32, sep='\\n', flush=True); continue", "crash", _ELSE,
    ),
    "gives no activation": ("pass", "fail", "no output is exposed"),
    "kills the process that asks": ("os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)", "crash", "exit code 1"),
    "takes too much memory": ("bytearray(2**35)", "crash", "exit code 1"),
    "hangs": ("time.sleep(600)", "timeout", "had not come to an end"),
    "leaves a process of another session behind": (_LEFT, "fail", "no output is exposed"),
}  # fmt: skip

# Those that cannot run in the process of the tests, by the beginning of their source: they end it, or never end.
APART = ("kills", "takes too much", "hangs", "leaves a process", "ends the process")

# Modules: the body of the forward pass of each.
_MODULE = """
import os, time
from torch import nn

class Stranger(nn.Module):
    def __init__(self, vocab_size, hidden_size, num_hidden_layers):
        super().__init__()
        self.words = nn.Embedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(num_hidden_layers))
        {constructed}

    def forward(self, input_ids, attention_mask, token_type_ids):
        {called}
"""
# Modules: what each does in its constructor, and when it is called.
MODULES: Mapping[str, tuple[str, str, str, str]] = {
    "raises in its constructor": ("raise ValueError('not built')", "pass", "fail", "not built"),
    "ends the process in its constructor": ("os._exit(6)", "pass", "crash", "exit code 6"),
    "hangs in its constructor": ("time.sleep(600)", "pass", "timeout", "had not come to an end"),
    "raises in its forward pass": ("pass", "raise SystemExit('not called')", "fail", "not called"),
    "ends the process in its forward pass": ("pass", "os._exit(8)", "crash", "exit code 8"),
    "returns nothing": ("pass", "return None", "fail", "no way of calling it gives a tensor"),
}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _changed(path: Path, key: str, value: str) -> None:
    with safe_open(path, "np") as file:
        arrays, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118 -- no mapping
    if key in metadata:
        metadata[key] = value
    else:
        name = next(name for name in arrays if name.endswith(key))
        arrays[name] = np.full_like(arrays[name], value)
    save_file(arrays, path, metadata)


# Recorded traces: the change made to a correct file.
TRACES: Mapping[str, tuple[Callable[[Path], object], str, str]] = {
    "is cut short": (_cut, "error", "cannot be read as a trace"),
    "is empty": (lambda path: path.write_bytes(b""), "error", "cannot be read as a trace"),
    "is of other weights": (lambda path: _changed(path, "checkpoint", "0" * 64), "error", "was recorded on tiny"),
    "names an unknown format": (lambda path: _changed(path, "dtype", "float7"), "error", "float7"),
    "has infinities": (lambda path: _changed(path, "layer.1.output.LayerNorm", "inf"), "fail", "not finite"),
}


def _named() -> Iterator[tuple[str, tuple[str, str, str]]]:
    for i, (what, (_, outcome, reason)) in enumerate(PROGRAMS.items()):
        yield f"cmd:{shlex.join((sys.executable, f'program_{i}.py'))}", (f"program: {what}", outcome, reason)
    for i, (what, (_, _, outcome, reason)) in enumerate(MODULES.items()):
        yield f"stranger_{i}:Stranger", (f"module: {what}", outcome, reason)
    for i, (what, (_, outcome, reason)) in enumerate(TRACES.items()):
        yield f"trace_{i}.safetensors", (f"trace: {what}", outcome, reason)


# By the name of each as a candidate: what is wrong with it, its outcome and words of its reason.
NAMED = dict(_named())


def write_files(folder: Path) -> None:
    """Write all files."""
    for i, (misbehaves, _, _) in enumerate(PROGRAMS.values()):
        (folder / f"program_{i}.py").write_text(_PROGRAM.format(misbehaves=misbehaves))
    for i, (constructed, called, _, _) in enumerate(MODULES.values()):
        (folder / f"stranger_{i}.py").write_text(_MODULE.format(constructed=constructed, called=called))
    trace = record(making_bert, load_golden("tiny"), "cpu", "float32")
    for i, (damage, _, _) in enumerate(TRACES.values()):
        path = folder / f"trace_{i}.safetensors"
        save(trace, path)
        damage(path)
