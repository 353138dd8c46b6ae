"""Capturing interior activations of an `nn.Module`, by hooks that leave no trace.

A tap says where an activation is to be had: the output of a module, one element of a tuple that it returns, or its first
input. The forward pass runs in a thread of its own and hands each tensor over as it is computed, so that the consumer works while
it goes on and no more than a few activations exist at a time, however deep the network.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from conformance.errors import CandidateError

DEPTH = 2  # activations in flight: one being judged, one waiting.


@dataclass(frozen=True)
class Tap:
    """Where in a module tree an activation is found: `path`, and what of that module (`element` of a tuple that it returns)."""

    path: str
    what: Literal["output", "input"] = "output"
    element: int = 0


class _Abandoned(BaseException):
    """Raised inside the forward pass when nobody listens any more."""


_END = object()


def captured(
    module: nn.Module, taps: Mapping[str, Tap], forward: Callable[[], Mapping[str, Any] | None]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Run `forward` and yield (activation name, tensor copy) as its hooks fire, then what `forward` itself returns by name.

    Copies are taken at the hook, since in-place operations alter tensors later. Hooks are removed whatever happens; an exception
    of the forward pass is raised here.

    Raises:
        CandidateError: a tap names a module that does not exist.
    """
    modules = dict(module.named_modules())
    missing = [tap.path for tap in taps.values() if tap.path not in modules]
    if missing:
        raise CandidateError(f"no such modules: {', '.join(sorted(missing))}")
    out: queue.Queue[Any] = queue.Queue(maxsize=DEPTH)
    stop = threading.Event()

    def put(item: Any) -> None:
        while True:
            if stop.is_set():
                raise _Abandoned
            try:
                return out.put(item, timeout=0.05)
            except queue.Full:
                continue

    def emit(name: str, value: Any, element: int) -> None:
        tensor = value[element] if isinstance(value, (tuple, list)) else value
        if isinstance(tensor, torch.Tensor):
            put((name, tensor.detach().clone()))

    def hooked(name: str, tap: Tap) -> Any:
        target = modules[tap.path]
        if tap.what == "input":
            return target.register_forward_pre_hook(lambda _m, args: emit(name, args, tap.element))
        return target.register_forward_hook(lambda _m, _a, result: emit(name, result, tap.element))

    def work() -> None:
        handles = []
        try:
            handles = [hooked(name, tap) for name, tap in taps.items()]
            with torch.no_grad():
                for name, value in (forward() or {}).items():
                    emit(name, value, 0)
            put(_END)
        except _Abandoned:
            pass
        except BaseException as error:
            with contextlib.suppress(_Abandoned):
                put(error)
        finally:
            for handle in handles:
                handle.remove()

    worker = threading.Thread(target=work, name="forward", daemon=True)
    worker.start()
    try:
        while (item := out.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        worker.join()
