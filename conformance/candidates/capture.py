"""Temporary hooks on an `nn.Module`, and the capture of its interior activations by them.

A tap specifies where an activation is captured: the output of a module, one element of a tuple or mapping that the module returns,
or one of its inputs. The forward pass runs in its own thread and passes on each tensor when it is computed, so that the consumer
works in parallel and only a few activations exist at a time, independent of the depth of the network. Inside the context
`at_once`, meant for small batches, all activations are captured before the first is consumed, without a second thread.
"""

import contextlib
import contextvars
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from conformance.candidates.hook_effects import compiled_around, eager_if
from conformance.errors import CandidateError, RegistrationError, UsageError
from conformance.model.batch import TorchBatch

Side = Literal["output", "input"]
Key = TypeVar("Key")
_NONE: Mapping[str, Any] = MappingProxyType({})
DEPTH = 2  # size of the queue of activations: one being judged, one waiting


@contextlib.contextmanager
def listening(
    places: Iterable[tuple[Key, nn.Module, Side]], callback: Callable[[Key, int, Any, Mapping[str, Any]], None]
) -> Iterator[None]:
    """Register a hook at each place, and remove all of them at the end.

    A copy of the module that is made inside the context keeps its copies of the hooks; these do nothing after the context. A
    function that replaces modules, such as `quantize_dynamic`, may register a hook again without keyword arguments.

    Each place is a unique key, a module, and whether its inputs or its output are passed on. At every call of the module,
    `callback` is called with the key, the number of the call from 0, the tuple of inputs or the output, and the keyword arguments,
    which are empty for an output.
    """
    calls: Counter[Key] = Counter()
    is_open = True

    def call_back(key: Key, value: Any, named: Mapping[str, Any]) -> None:
        if is_open:
            callback(key, calls[key], value, named)
            calls[key] += 1

    handles = []
    try:
        for key, module, side in places:
            if side == "input":
                handles.append(
                    module.register_forward_pre_hook(lambda _m, a, k=_NONE, key=key: call_back(key, a, k), with_kwargs=True)
                )
            else:
                handles.append(module.register_forward_hook(lambda _m, _a, r, key=key: call_back(key, r, {})))
        yield
    finally:
        is_open = False
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class Tap:
    """The place in a module tree at which an activation is captured.

    Attributes:
        path: path of the module as in `named_modules`; any of its paths if it is registered at several.
        what: `output` or `input` of the module.
        element: index in the tuple of outputs or inputs, or key of a mapping or keyword argument.
        call: index of the call, if the module is called more than once in a forward pass.

    Raises:
        UsageError: `what` is neither `output` nor `input`.

    Example:
        >>> Tap("encoder.norm", "input").element
        0
    """

    path: str
    what: Side = "output"
    element: int | str = 0
    call: int = 0

    def __post_init__(self) -> None:
        if self.what not in ("output", "input"):
            raise UsageError(f"a tap takes a module's output or its input, not its {self.what!r}")


class _Abandoned(BaseException):
    """An exception raised inside the forward pass after the consumer has stopped."""


_END = object()
_AT_ONCE = contextvars.ContextVar("at once", default=False)


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Let `captured` run each forward pass to its end, in the caller's thread, before it yields the first activation."""
    token = _AT_ONCE.set(True)
    try:
        yield
    finally:
        _AT_ONCE.reset(token)


def is_at_once() -> bool:
    """Return whether the context `at_once` is active."""
    return _AT_ONCE.get()


def captured(
    module: nn.Module, taps: Mapping[str, Tap], forward: Callable[[], Mapping[str, Any] | None]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Run `forward` and yield (activation name, copy of the tensor): first those at the taps, then those that `forward` returns.

    Tensors are copied in the hook, since in-place operations may modify them later. The hooks are always removed. No gradients
    are recorded.

    Args:
        module: module that is run.
        taps: tap of each activation, by name.
        forward: runs the module; may return further activations by name. Its exceptions are raised here.

    Raises:
        RegistrationError: a tap names a module that does not exist, or an element that the module does not have.
        CandidateError: `forward` returns a value that is not a tensor.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        >>> taps = {"sum": Tap("0"), "result": Tap("1")}
        >>> [(name, tuple(value.shape)) for name, value in captured(net, taps, lambda: {"copy": net(torch.zeros(3, 2))})]
        [('sum', (3, 2)), ('result', (3, 2)), ('copy', (3, 2))]
    """
    modules = require_modules(module, taps)
    return _all(modules, taps, forward) if _AT_ONCE.get() else _streamed(modules, taps, forward)


def require_modules(module: nn.Module, taps: Mapping[str, Tap]) -> Mapping[str, nn.Module]:
    """Return every submodule by its paths; raise `RegistrationError` if a tap names a module that does not exist."""
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

    # Autocast is a setting of the thread.
    casts = [torch.autocast(d, torch.get_autocast_dtype(d)) for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]

    def work() -> None:
        try:
            with (
                contextlib.ExitStack() as autocast,
                hooked(modules, taps, lambda name, tensor: put((name, _copied(tensor)))),
                torch.no_grad(),
            ):
                for cast in casts:
                    autocast.enter_context(cast)
                for name, value in (forward() or {}).items():
                    put((name, _copied(returned(value, name))))
            put(_END)
        except _Abandoned:
            pass
        except BaseException as error:
            with contextlib.suppress(_Abandoned):
                put(error)

    # The thread inherits the caller's context variables.
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
    """A module whose forward pass returns its activations by name, so that it can be traced or exported with them as outputs.

    Its inputs are token ids, attention mask and token types, (B, S) each. Its outputs are the activations at the taps while
    `forward` runs on a batch of these inputs, then the activations that `forward` returns by name.

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
        shown: Callable[[str, torch.Tensor, TorchBatch], Iterable[tuple[str, torch.Tensor]]] = lambda name, tensor, _: [
            (name, tensor)
        ],
    ) -> None:
        """Wrap a module.

        Args:
            module: the module that is run.
            taps: tap of each key.
            forward: runs the module on a batch; may return further activations by name.
            shown: maps (key, tensor at the tap, batch) to one or several activations, by name.
        """
        super().__init__()
        self.module, self._taps, self._forward, self._shown = module, dict(taps), forward, shown

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return every activation by name, in the order of computation."""
        found: dict[str, torch.Tensor] = {}
        batch = TorchBatch(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        modules = dict(self.module.named_modules(remove_duplicate=False))
        with hooked(modules, self._taps, lambda name, tensor: found.update(self._shown(name, _copied(tensor), batch))):
            returned = self._forward(batch)
        return {**found, **(returned or {})}


def several_calls(modules: Mapping[str, nn.Module], taps: Iterable[Tap]) -> list[str]:
    """Return an error for each module that taps name by several paths, as if each were a module of its own."""
    paths: dict[tuple[int, str, int | str, int], set[str]] = {}
    for tap in taps:
        if tap.path in modules:
            paths.setdefault((id(modules[tap.path]), tap.what, tap.element, tap.call), set()).add(tap.path)
    return [
        f"{', '.join(sorted(of_one))} are one module, which is called several times: name each call, as by "
        f"Tap({max(of_one)!r}, call=1)"
        for of_one in paths.values()
        if len(of_one) > 1
    ]


@contextlib.contextmanager
def hooked(modules: Mapping[str, nn.Module], taps: Mapping[str, Tap], put: Callable[[str, torch.Tensor], None]) -> Iterator[None]:
    """Return a context in which one hook per tapped module and side passes on the tensors at the taps.

    Code under `torch.compile` that contains such a hook is run eagerly: the hook would end the compiled graph there in any case.
    `modules` has every submodule by its paths, `taps` the tap of each activation by name. `put` is called with the name and the
    tensor, which is not copied.
    """
    at: dict[tuple[int, Side], list[tuple[str, Tap]]] = {}
    for name, tap in taps.items():
        at.setdefault((id(modules[tap.path]), tap.what), []).append((name, tap))

    def emit(key: tuple[int, Side], call: int, value: Any, named: Mapping[str, Any]) -> None:
        by_position, by_key = (value, named) if key[1] == "input" else _parts(value)
        for name, tap in at[key]:
            if tap.call == call:
                tensor = _tensor_at(by_key if isinstance(tap.element, str) else by_position, tap.element, name, RegistrationError)
                if tensor is not None:
                    put(name, tensor)

    with (
        eager_if(compiled_around(modules, [tap.path for tap in taps.values()])),
        listening(((key, modules[wanted[0][1].path], key[1]) for key, wanted in at.items()), emit),
    ):
        yield


def _parts(result: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the elements of a module's result by position and by key."""
    if isinstance(result, Mapping):
        return tuple(result.values()), result
    return (tuple(result) if isinstance(result, (tuple, list)) else (result,)), {}


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor, since in-place operations may modify the tensor later."""
    return tensor.detach().clone()


def returned(value: Any, name: str) -> torch.Tensor:
    """Return the tensor that a forward pass returned under a name, or the first of several.

    Raises:
        CandidateError: there is no tensor.
    """
    tensor = _tensor_at(value, 0, name)
    if tensor is None:
        raise CandidateError(f"{name}: None is returned, expected a tensor")
    return tensor


def _tensor_at(value: Any, element: int | str, name: str, error: type[CandidateError] = CandidateError) -> torch.Tensor | None:
    """Return `value` if it is a tensor, else its element at `element`; None if that is None; raise `error` for anything else."""
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


def gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter's gradient, 0 if it has none; a sparse one, as that of `nn.Embedding(sparse=True)`, as a dense tensor."""
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
