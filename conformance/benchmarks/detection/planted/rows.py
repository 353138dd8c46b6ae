"""Mistakes in the order of rows and of tokens, and results of another row."""

from collections.abc import Callable

from torch import Tensor

from conformance.benchmarks.detection.planted.plant import Plant, after, in_layer

VALUE = "attention.self.value"


def _moved(name: str, change: Callable[[Tensor], Tensor]) -> Plant:
    return in_layer(name, lambda model, layer: after(model.layer(layer).attention.self.value, change), VALUE)


PLANTS = (
    _moved("rows-first", lambda x: x[:1].expand_as(x).contiguous()),
    _moved("rows-other", lambda x: x.flip(0)),
    _moved("tokens-shifted", lambda x: x.roll(1, 1)),
)
