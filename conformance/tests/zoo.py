"""Candidates that misbehave in one way each: at import (as a module of its own), when they are prepared, or in a call.

The expected outcome is listed beside each. After each, a correct candidate is run, and must conform."""

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from conformance import ModuleRunner, Unsupported, trace
from conformance.checks.laws.law import Law

_TRUE = trace("golden:tiny").activations["padded"]
MARKS = "ZOO_MARKS"  # Names a file into which processes that are left behind write their process ids.
LAST = "encoder.layer.1.output.LayerNorm"
GOOD = "from conformance.tests.zoo import good as candidate"
_LARGE = torch.zeros(1).expand(50_000, 50_000)  # Ten gigabytes if it were copied.


def right(batch: Any) -> dict[str, Any]:
    """Return what a correct candidate yields on the golden `tiny` in float32."""
    return {name: np.asarray(value, np.float32) for name, value in _TRUE.items()}


def _raises(error: BaseException) -> Any:
    raise error


class _Evil(str):
    """A name whose hash and comparison raise."""

    def __hash__(self) -> int:
        raise ValueError("hash")

    def __eq__(self, other: object) -> bool:
        raise ValueError("eq")


class _Array:
    """An object with the array interface that is not an array."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def __dlpack__(self, **options: Any) -> Any:
        if self.error is not None:
            raise self.error
        return "no capsule"

    def __dlpack_device__(self) -> Any:
        return (1, 0)


class _Tensor(torch.Tensor):
    """A tensor that cannot be moved to the CPU."""

    def cpu(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("not moved")


class _Unspeakable(Exception):
    """An exception whose text raises."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


def _hidden_state(value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return correct activations except for the last hidden state."""
    return lambda batch: {**right(batch), LAST: value(right(batch)[LAST])}


def _endless(batch: Any) -> Iterator[tuple[str, Any]]:
    while True:
        yield LAST, right(batch)[LAST]


def _patching(batch: Any) -> Any:
    F.scaled_dot_product_attention = F.gelu = F.layer_norm = lambda *a, **k: _raises(RuntimeError("patched"))
    np.sqrt = np.exp = lambda x, *a, **k: x  # type: ignore[assignment]
    return right(batch)


def _settings(batch: Any) -> Any:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    np.seterr(all="raise")
    return right(batch)


def _sleep() -> None:
    with open(os.environ[MARKS], "a") as marks:
        marks.write(f"{os.getpid()}\n")
    time.sleep(600.0)


def _forking(batch: Any) -> Any:
    if not os.fork():
        _sleep()
    time.sleep(0.2)
    os._exit(4)


def _daemon(batch: Any) -> Any:
    if not os.fork():
        os.setsid()
        if not os.fork():
            _sleep()
        os._exit(0)
    time.sleep(0.2)
    return right(batch)


def _in_every_file(act: Callable[[int], object]) -> None:
    for number in range(3, 256):
        with contextlib.suppress(OSError):
            act(number)


def _parent(batch: Any) -> Any:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600.0)


def _network(batch: Any) -> Any:
    socket.create_connection(("192.0.2.1", 9), timeout=2.0)  # RFC 5737: an address that belongs to no machine.


def _writing(batch: Any) -> Any:
    while True:
        os.write(2, b"x" * 2**20)
        time.sleep(0.02)  # Without this, two cores are busy with writing and reading; all but the first megabyte is dropped anyway.


def _talkative(batch: Any) -> Any:
    print("{" * 10_000)
    sys.stdout.write("\x1b[2J")
    os.write(1, b"no JSON")
    return right(batch)


# In a call: the outcome and words of its reason.
CALLS: Mapping[str, tuple[Callable[[Any], Any], str, str]] = {
    "raises": (lambda batch: _raises(ValueError("no")), "crash", "ValueError: no"),
    "raises an error without a text": (lambda batch: _raises(_Unspeakable()), "crash", "_Unspeakable"),
    "exits": (lambda batch: sys.exit(0), "crash", "SystemExit"),
    "exits at once": (lambda batch: os._exit(0), "crash", "exit code 0"),
    "is killed": (lambda batch: os.kill(os.getpid(), signal.SIGKILL), "crash", "Killed"),
    "aborts": (lambda batch: os.abort(), "crash", "Aborted"),
    "overflows the stack": (lambda batch: (lambda f: f(f))(lambda f: f(f)), "crash", "RecursionError"),
    "says in a call that it is unsupported": (lambda batch: _raises(Unsupported("not today")), "crash", "not today"),
    "leaves a process behind and ends": (_forking, "crash", "exit code 4"),
    "leaves a process of another session behind": (_daemon, "pass", ""),
    "kills its parent": (_parent, "crash", "PermissionError"),
    "closes every file": (lambda batch: _in_every_file(os.close), "crash", "it ended"),
    "writes into every file": (lambda batch: _in_every_file(lambda n: os.write(n, b"\0\0\0\4junk")), "crash", "something else"),
    "writes without end": (_writing, "timeout", "had not come"),
    "takes too much memory": (lambda batch: np.ones(2**31), "crash", "MemoryError"),
    "uses the network": (_network, "crash", "unreachable"),
    "returns nothing": (lambda batch: None, "fail", "NoneType"),
    "returns a number": (lambda batch: 3.0, "fail", "not float"),
    "returns texts": (lambda batch: ["a", "b"], "fail", "pairs"),
    "returns an empty mapping": (lambda batch: {}, "fail", "no output is exposed"),
    "yields no pair": (lambda batch: iter([1]), "fail", "pairs"),
    "yields one activation twice, for ever": (_endless, "fail", "more invalid activations than the network has"),
    "names an activation by a number": (lambda batch: {1: right(batch)["pooler.dense"]}, "fail", "is a text, not int"),
    "names an activation that does not exist": (lambda batch: {"pooler.dence": 1.0}, "fail", "did you mean 'pooler.dense'"),
    "names activations by texts that cannot be compared": (
        lambda batch: iter([(_Evil(name), value) for name, value in right(batch).items()]), "pass", "",
    ),
    "yields an array whose __dlpack__ raises": (_hidden_state(lambda x: _Array(OSError("gone"))), "fail", "OSError: gone"),
    "yields an array whose __dlpack__ exits": (_hidden_state(lambda x: _Array(SystemExit(0))), "fail", "SystemExit"),
    "yields no array": (_hidden_state(lambda x: _Array()), "fail", "cannot be read"),
    "yields a text": (_hidden_state(lambda x: "0.1"), "fail", "a str is no array"),
    "yields an object": (_hidden_state(lambda x: object()), "fail", "a object is no array"),
    "yields a tensor that cannot be moved": (
        _hidden_state(lambda x: torch.from_numpy(x).as_subclass(_Tensor)), "fail", "not moved",
    ),
    "yields a sparse tensor": (_hidden_state(lambda x: torch.from_numpy(x).to_sparse()), "fail", "cannot be read"),
    "yields a tensor without data": (_hidden_state(lambda x: torch.empty(x.shape, device="meta")), "fail", "device is meta"),
    "yields an expanded tensor of ten gigabytes": (_hidden_state(lambda x: _LARGE), "fail", "(50000, 50000)"),
    "yields another shape": (_hidden_state(lambda x: x[:, :-1]), "fail", "shape is"),
    "yields another dtype": (_hidden_state(lambda x: x.astype(np.float64)), "fail", "dtype is float64"),
    "yields integers": (_hidden_state(lambda x: x.astype(np.int32)), "fail", "dtype is int32"),
    "yields complex numbers": (_hidden_state(lambda x: x.astype(np.complex64)), "fail", "dtype is complex64"),
    "yields objects": (_hidden_state(lambda x: x.astype(object)), "fail", "dtype is object"),
    "yields NaN": (_hidden_state(lambda x: x * np.float32("nan")), "fail", "not finite"),
    "yields infinities": (_hidden_state(lambda x: x + np.float32("inf")), "fail", "not finite"),
    "patches torch and NumPy": (_patching, "pass", ""),
    "changes the settings of the process": (_settings, "pass", ""),
    "writes to standard output": (_talkative, "pass", ""),
    "alters its batch": (lambda batch: batch.input_ids.zero_() is None or right(batch), "pass", ""),
    "hangs": (lambda batch: time.sleep(600.0), "timeout", "had not come to an end"),
    "hangs and ignores signals": (
        lambda batch: (signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(600.0)), "timeout", "had not come to an end",
    ),
}  # fmt: skip

# Those that cannot run in the process of the tests, since they end it or leave it changed.
APART = frozenset(
    {"exits at once", "is killed", "aborts", "hangs", "hangs and ignores signals", "kills its parent", "closes every file"}
    | {"leaves a process behind and ends", "leaves a process of another session behind", "writes into every file"}
    | {"writes without end", "takes too much memory", "uses the network"}
    | {"patches torch and NumPy", "changes the settings of the process", "writes to standard output"}
)


def _altering(checkpoint: Any, device: str, dtype: str) -> Any:
    for name in checkpoint.weights:
        torch.from_numpy(checkpoint.weights[name]).mul_(3.0)
    return right


class _Attributes:
    """A candidate whose attributes raise."""

    def __getattr__(self, name: str) -> Any:
        raise OSError(f"no {name}")

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        return right


class _Support:
    """A candidate whose `supports` is given."""

    def __init__(self, supports: Callable[..., Any]) -> None:
        self.supports = supports

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        return right


# When prepared: the candidate, its outcome and words of its reason.
ASKED: Mapping[str, tuple[Any, str, str]] = {
    "alters the checkpoint": (_altering, "pass", ""),
    "cannot be prepared": (lambda *a: _raises(MemoryError("too large")), "crash", "MemoryError"),
    "ends the process in prepare": (lambda *a: os._exit(7), "crash", "exit code 7"),
    "is prepared to nothing": (lambda *a: None, "fail", "returned None"),
    "has attributes that raise": (_Attributes(), "error", "OSError: no named_modules"),
    "raises in supports": (_Support(lambda *a: _raises(KeyError("x"))), "crash", "KeyError"),
    "supports what is no reason": (_Support(lambda *a: 7), "fail", "None or a reason, not 7"),
    "says that it is unsupported": (_Support(lambda *a: "not this one"), "skip", "not this one"),
    "says so in prepare": (lambda *a: _raises(Unsupported("nor this")), "skip", "nor this"),
}

# At import: the source of the module, its outcome and words of its reason.
IMPORTS: Mapping[str, tuple[str, str, str]] = {
    "exits": ("import os; os._exit(0)", "crash", "exit code 0"),
    "raises": ("1 / 0", "error", "ZeroDivisionError"),
    "raises SystemExit": ("raise SystemExit(0)", "error", "SystemExit"),
    "is interrupted": ("raise KeyboardInterrupt", "crash", "KeyboardInterrupt"),
    "hangs": ("import time; time.sleep(600)", "timeout", "had not come to an end"),
    "prints": (f"print('{{'); import os; os.write(1, b'no JSON')\n{GOOD}", "pass", ""),
    "patches attention": (
        f"import torch.nn.functional as F; F.scaled_dot_product_attention = None\n{GOOD}",
        "pass",
        "",
    ),
    "has a syntax error": ("def", "error", "SyntaxError"),
}


def good(checkpoint: Any, device: str, dtype: str) -> Any:
    """Prepare a correct candidate."""
    return right


def patching_and_wrong(checkpoint: Any, device: str, dtype: str) -> Any:
    """Prepare a candidate that is wrong by a factor and patches comparisons in its process so that nothing differs."""
    from conformance.implementations.hugging_face import hf_sdpa

    runner = hf_sdpa.prepare(checkpoint, device, dtype)
    np.isfinite = np.max = np.abs = lambda x, *a, **k: np.zeros_like(x)  # type: ignore[assignment]
    return lambda batch: ((name, value * 1.5) for name, value in runner(batch))


LAWLESS = (
    "repeated",
    "dropout-off",
    "ids-refused",
    "inputs-untouched",
    "settings-untouched",
    "weights-untouched",
    "registered-tensors",
)


def patching_and_lawless(checkpoint: Any, device: str, dtype: str) -> Any:
    """Prepare a candidate that breaks the laws of `LAWLESS` and patches comparisons and the laws in its process so that they
    hold."""
    from conformance.implementations.hugging_face import hf_sdpa, run

    _patch_laws()
    model: Any = hf_sdpa.module(checkpoint, device, dtype)
    model.train(True)
    model.loose = torch.ones(1)
    model.register_buffer("calls", torch.zeros(1))

    def call(batch: Any) -> Iterator[tuple[str, Any]]:
        model.calls += 1
        batch.input_ids.clamp_(0, checkpoint.architecture.vocab_size - 1)
        yield from run(model.eval(), batch)
        model.train()
        batch.input_ids.fill_(-1)
        np.seterr(divide="ignore")
        yield "pooler.dense", torch.rand(batch.input_ids.shape[0], checkpoint.architecture.hidden_size)

    return ModuleRunner(model, call)


def _patch_laws() -> None:
    torch.equal = np.array_equal = lambda *a, **k: True  # type: ignore[assignment]
    np.abs = np.where = lambda x, *a, **k: np.zeros_like(x)  # type: ignore[assignment]
    for module in [module for name, module in sys.modules.items() if name.startswith("conformance.checks")]:
        for name, value in list(vars(module).items()):
            if name in ("require_agreement", "require_identity"):
                setattr(module, name, lambda *a: 0.0)
            elif isinstance(value, Law):
                setattr(module, name, replace(value, function=lambda subject, example: 0.0))


def ending_at_odd_lengths(checkpoint: Any, device: str, dtype: str) -> Any:
    """End the process on batches of odd length."""
    from conformance.implementations.hugging_face import hf_sdpa

    runner = hf_sdpa.prepare(checkpoint, device, dtype)
    return lambda batch: os._exit(5) if batch.input_ids.shape[1] % 2 else runner(batch)


def _calling(call: Callable[[Any], Any]) -> Any:
    return lambda checkpoint, device, dtype: call


def __getattr__(name: str) -> Any:
    """Return the candidate named `call_N` or `asked_N`, the N-th of each kind, so that it can be given on the command line.

    `call_hangs` is the one that hangs. `good_N` is a correct one, under as many names as needed."""
    kind, _, number = name.partition("_")
    if kind == "good":
        return good
    if name == "call_hangs":
        return _calling(CALLS["hangs"][0])
    with contextlib.suppress(ValueError, IndexError):
        if kind == "call":
            return _calling(list(CALLS.values())[int(number)][0])
        if kind == "asked":
            return list(ASKED.values())[int(number)][0]
    raise AttributeError(name)
