"""Hooks on the inputs and outputs of modules, for the time of a context."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from torch import nn

Side = Literal["output", "input"]
Key = TypeVar("Key")
_NONE: Mapping[str, Any] = MappingProxyType({})


@contextlib.contextmanager
def listening(
    places: Iterable[tuple[Key, nn.Module, Side]], callback: Callable[[Key, int, Any, Mapping[str, Any]], None]
) -> Iterator[None]:
    """Register a hook at each place, and remove all of them at the end.

    A copy of the module that is made inside the context keeps its copies of the hooks; these do nothing after the context. A
    function that replaces modules, such as `quantize_dynamic`, may register a hook again without keyword arguments.

    Args:
        places: a key, a module, and whether its inputs or its output are passed on; keys are unique.
        callback: called at every call of the module with the key, the number of the call from 0, the tuple of inputs or the output,
            and the keyword arguments, which are empty for an output.
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
