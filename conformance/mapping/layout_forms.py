"""The possible layouts of one, two or three parameters of the same shape in a tensor."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from conformance.candidates.layouts import Layout, Shape, fused, interleaved, per_head, permuted, plain, stacked, transposed
from conformance.model.architecture import Architecture
from conformance.numerics.formats import Array


@dataclass(frozen=True)
class Form:
    """A layout of `parts` parameters whose names are not yet known.

    Attributes:
        text: Python source of the layout, with `{}` for the names.
        parts: number of parameters.
        make: returns the layout for given names.
        matrix: whether the form is for matrices only; for vectors it equals a simpler form.
    """

    text: str
    parts: int
    make: Callable[..., Layout]
    matrix: bool = False

    def across(self) -> "Form":
        """Return the form of a tensor that stacks this form over all layers."""
        return Form(f"stacked({self.text})", self.parts, lambda *names: stacked(self.make(*names)), self.matrix)

    def pieces(self, value: Array, shape: Shape, a: Architecture) -> list[Array] | None:
        """Return the parameters, of shape `shape`, unpacked from the tensor of one layer; None if its shape does not match."""
        if self.matrix and len(shape) < 2:
            return None
        shapes = [shape] * self.parts
        return self.make(*"qkv"[: self.parts]).unpack(value, shapes, a) if _packed(self, shape, a) == value.shape else None


@cache
def _packed(form: Form, shape: Shape, a: Architecture) -> Shape | None:
    """Return the shape of a tensor that holds parameters of shape `shape`; None if an axis cannot be split into heads."""
    layout = form.make(*"qkv"[: form.parts])
    try:
        return layout.pack([np.empty(shape, np.int8)] * form.parts, a).shape
    except ValueError:
        return None


def _several(parts: int) -> Iterator[Form]:
    yield Form("fused({})", parts, lambda *names: fused(*names))
    yield Form("transposed(fused({}))", parts, lambda *names: transposed(fused(*names)), True)
    yield Form("interleaved({})", parts, lambda *names: interleaved(*names))
    yield Form("transposed(interleaved({}))", parts, lambda *names: transposed(interleaved(*names)), True)
    yield Form("per_head(interleaved({}))", parts, lambda *names: per_head(interleaved(*names)))
    yield _permuted("per_head(interleaved({}))", parts, lambda *names: per_head(interleaved(*names)), (0, 2, 1))
    yield Form("stacked({})", parts, lambda *names: stacked(*names))
    yield Form("per_head(stacked({}), axis=1)", parts, lambda *names: per_head(stacked(*names), axis=1))
    yield _permuted("stacked({})", parts, stacked, (0, 2, 1))
    yield _permuted("per_head(stacked({}), axis=1)", parts, lambda *names: per_head(stacked(*names), axis=1), (0, 1, 3, 2))


def _permuted(text: str, parts: int, make: Callable[..., Layout], axes: Sequence[int]) -> Form:
    return Form(f"permuted({text}, axes={list(axes)})", parts, lambda *names: permuted(make(*names), axes), True)


ALONE = (
    Form("{}", 1, plain),
    Form("transposed({})", 1, transposed, True),
    Form("per_head({})", 1, per_head),
    Form("per_head({}, axis=1)", 1, lambda name: per_head(name, axis=1), True),
    Form("per_head(transposed({}))", 1, lambda name: per_head(transposed(name)), True),
    Form("per_head(transposed({}), axis=1)", 1, lambda name: per_head(transposed(name), axis=1), True),
    _permuted("per_head({})", 1, per_head, (0, 2, 1)),
)
FORMS = (*ALONE, *_several(2), *_several(3))
