"""Capturing interior activations of an `nn.Module`, by hooks that leave no trace.

A tap says where an activation is taken: the output of a module, one element of a tuple or a mapping that it returns, or one of
its inputs. The forward pass runs in a thread of its own and hands each tensor over as it is computed, so that the consumer works
while it goes on and no more than a few activations exist at a time, however deep the network. A consumer of small batches takes
them all at once, within `at_once`, without a second thread.
"""

import contextlib
import contextvars
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from conformance.errors import CandidateError, RegistrationError, UsageError
from conformance.model.batch import TorchBatch

DEPTH = 2  # activations in flight: one being judged, one waiting.


@dataclass(frozen=True)
class Tap:
    """Where in a module tree an activation is found.

    Attributes:
        path: the module's, as in `named_modules`; a module that stands at several paths may be named by any.
        what: its output, or its input.
        element: which element of a tuple that it returns or takes, or the key of a mapping or of a keyword argument.
        call: which of its calls, where a module is used more than once in a forward pass.

    Example:
        >>> Tap("encoder.norm", "input").element
        0
    """

    path: str
    what: Literal["output", "input"] = "output"
    element: int | str = 0
    call: int = 0

    def __post_init__(self) -> None:
        if self.what not in ("output", "input"):
            raise UsageError(f"a tap takes a module's output or its input, not its {self.what!r}")


class _Abandoned(BaseException):
    """Raised inside the forward pass when the consumer has stopped."""


_END = object()
_AT_ONCE = contextvars.ContextVar("at once", default=False)


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Forward passes in here run to their end, in the thread of their caller, before their first activation is seen."""
    token = _AT_ONCE.set(True)
    try:
        yield
    finally:
        _AT_ONCE.reset(token)


def is_at_once() -> bool:
    """Whether this is inside `at_once`."""
    return _AT_ONCE.get()


def captured(
    module: nn.Module, taps: Mapping[str, Tap], forward: Callable[[], Mapping[str, Any] | None]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Run `forward` and yield (activation name, tensor copy) as its hooks fire, then what `forward` itself returns by name.

    Copies are taken at the hook, since in-place operations alter tensors later. Hooks are removed whatever happens; an exception
    of the forward pass is raised here. No gradients are recorded.

    Raises:
        RegistrationError: a tap names a module that does not exist, or an element that it does not have.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        >>> taps = {"sum": Tap("0"), "result": Tap("1")}
        >>> [(name, tuple(value.shape)) for name, value in captured(net, taps, lambda: {"copy": net(torch.zeros(3, 2))})]
        [('sum', (3, 2)), ('result', (3, 2)), ('copy', (3, 2))]
    """
    modules = require_modules(module, taps)
    return _all(modules, taps, forward) if _AT_ONCE.get() else _streamed(modules, taps, forward)


def require_modules(module: nn.Module, taps: Mapping[str, Tap]) -> Mapping[str, nn.Module]:
    """Every submodule by its paths; `RegistrationError` where a tap names one that does not exist."""
    modules = dict(module.named_modules(remove_duplicate=False))
    missing = [tap.path for tap in taps.values() if tap.path not in modules]
    if missing:
        raise RegistrationError(f"no such modules: {', '.join(sorted(missing))}")
    return modules


def _all(
    modules: Mapping[str, nn.Module], taps: Mapping[str, Tap], forward: Callable[[], Mapping[str, Any] | None]
) -> Iterator[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    with hooked(modules, taps, lambda name, tensor: found.append((name, _copied(tensor)))), torch.no_grad():
        found += [(name, _copied(returned(value, name))) for name, value in (forward() or {}).items()]
    return iter(found)


def _streamed(
    modules: Mapping[str, nn.Module], taps: Mapping[str, Tap], forward: Callable[[], Mapping[str, Any] | None]
) -> Iterator[tuple[str, Any]]:
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

    def work() -> None:
        try:
            with hooked(modules, taps, lambda name, tensor: put((name, _copied(tensor)))), torch.no_grad():
                for name, value in (forward() or {}).items():
                    put((name, _copied(returned(value, name))))
            put(_END)
        except _Abandoned:
            pass
        except BaseException as error:
            with contextlib.suppress(_Abandoned):
                put(error)

    # The caller's context goes along: what it has set for itself holds in the worker as well.
    worker = threading.Thread(target=contextvars.copy_context().run, args=(work,), name="forward", daemon=True)
    worker.start()
    try:
        while (item := out.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        worker.join()


class Showing(nn.Module):
    """A module whose forward pass returns its activations by name: to be traced or exported with its interior as outputs.

    (B, S) ids, mask and token types -> what `forward`, given a batch of them, makes at the taps, then what it returns by name.

    Example:
        >>> net = nn.Sequential(nn.Embedding(9, 4))
        >>> ids = torch.tensor([[1, 2]])
        >>> outputs = Showing(net, {"embeddings": Tap("0")}, lambda batch: net(batch.input_ids) is None or None)(ids, ids, ids)
        >>> {name: tuple(value.shape) for name, value in outputs.items()}
        {'embeddings': (1, 2, 4)}
    """

    def __init__(
        self,
        module: nn.Module,
        taps: Mapping[str, Tap],
        forward: Callable[[TorchBatch], Mapping[str, Any] | None],
        shown: Callable[[str, torch.Tensor], Iterable[tuple[str, torch.Tensor]]] = lambda name, tensor: [(name, tensor)],
    ) -> None:
        """`shown` may give several activations of what a tap gives."""
        super().__init__()
        self.module, self._taps, self._forward, self._shown = module, dict(taps), forward, shown

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Every activation, in the order of computation."""
        found: dict[str, torch.Tensor] = {}
        batch = TorchBatch(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        modules = dict(self.module.named_modules(remove_duplicate=False))
        with hooked(modules, self._taps, lambda name, tensor: found.update(self._shown(name, _copied(tensor)))):
            returned = self._forward(batch)
        return {**found, **(returned or {})}


@contextlib.contextmanager
def hooked(modules: Mapping[str, nn.Module], taps: Mapping[str, Tap], put: Callable[[str, torch.Tensor], None]) -> Iterator[None]:
    """Hooks at every tapped module, one a module and direction, removed at the end; `put` is given the tensors themselves."""
    at: dict[tuple[int, str], list[tuple[str, Tap]]] = {}
    for name, tap in taps.items():
        at.setdefault((id(modules[tap.path]), tap.what), []).append((name, tap))
    calls: Counter[tuple[int, str]] = Counter()

    def emit(key: tuple[int, str], args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        for name, tap in at[key]:
            if tap.call == calls[key]:
                tensor = _tensor_at(named if isinstance(tap.element, str) else args, tap.element, name, RegistrationError)
                if tensor is not None:
                    put(name, tensor)
        calls[key] += 1

    handles = []
    try:
        for key, wanted in at.items():
            module = modules[wanted[0][1].path]
            if key[1] == "input":
                handles.append(module.register_forward_pre_hook(lambda _m, a, k, key=key: emit(key, a, k), with_kwargs=True))
            else:
                handles.append(module.register_forward_hook(lambda _m, _a, r, key=key: emit(key, *_parts(r))))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _parts(result: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """What a module returned, by position and by key."""
    if isinstance(result, Mapping):
        return tuple(result.values()), result
    return (tuple(result) if isinstance(result, (tuple, list)) else (result,)), {}


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, since in-place operations alter the tensor later."""
    return tensor.detach().clone()


def returned(value: Any, name: str) -> torch.Tensor:
    """The tensor that a forward pass returns by that name, or the first of several; `CandidateError` where there is none."""
    tensor = _tensor_at(value, 0, name)
    if tensor is None:
        raise CandidateError(f"{name}: None is returned, expected a tensor")
    return tensor


def _tensor_at(value: Any, element: int | str, name: str, error: type[CandidateError] = CandidateError) -> torch.Tensor | None:
    """The tensor at `element`, or `value` itself where it is one; None where there is None; raises `error` for anything else."""
    if not isinstance(value, torch.Tensor):
        try:
            value = value[element]
        except (LookupError, TypeError) as why:
            raise error(f"{name}: nothing at {element!r} of a {type(value).__name__}") from why
    if value is None:
        return None
    if not isinstance(value, torch.Tensor):
        raise error(f"{name}: a {type(value).__name__} at {element!r}, expected a tensor")
    return value
