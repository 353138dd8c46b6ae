"""Layouts of parameters: packing Hugging Face's parameters into a module's own tensors, and unpacking them.

A layout packs one or several parameters into one tensor and unpacks that tensor. Both directions are exact, so a mapping made of
layouts can be checked by a round trip. Layouts can be nested: `transposed(fused(query, key, value))`. In names, `{layer}` stands
for the index of each layer, from 0. If a module keeps two parts of each layer in one list, `{2*layer}` and `{2*layer+1}` are the
indices of the first and the second part. `{head}` in a module's name stands for the index of each head, if every head is a module
of its own; the first axis of the layout is then the head, as that of `per_head`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from conformance.errors import UsageError
from conformance.model.architecture import Architecture
from conformance.numerics.formats import Array

Shape = tuple[int, ...]
T = TypeVar("T")
LAYER = "{layer}"
HEAD = "{head}"
_LAYER = re.compile(r"\{(?:(\d+)\*)?layer(?:\+(\d+))?\}")


@dataclass(frozen=True)
class Layout:
    """A reversible layout of parameters in one tensor.

    Attributes:
        names: Hugging Face's names of the parameters; patterns contain `{layer}`.
        pack: maps the parameters, in the order of the names, to the module's tensor.
        unpack: maps the module's tensor and the parameters' shapes to the parameters.
        is_tied: whether the parameters are also mapped elsewhere (a tied decoder).
        across: whether one tensor holds the parameters of every layer.
        is_of_head: whether the tensor holds the part of one head, and `unpack` returns zeros for the others.

    Example:
        >>> a = load_golden("tiny").checkpoint.architecture
        >>> joined = fused("q", "k", "v")
        >>> whole = joined.pack([np.full((32, 32), value) for value in (1.0, 2.0, 3.0)], a)
        >>> whole.shape
        (96, 32)
        >>> [part[0, 0].item() for part in joined.unpack(whole, [(32, 32)] * 3, a)]
        [1.0, 2.0, 3.0]
    """

    names: tuple[str, ...]
    pack: Callable[[Sequence[Array], Architecture], Array]
    unpack: Callable[[Array, Sequence[Shape], Architecture], list[Array]]
    is_tied: bool = False
    across: bool = False
    is_of_head: bool = False


def plain(name: "str | Layout") -> Layout:
    """Return the layout that holds one parameter unchanged; a layout is returned as it is."""
    if isinstance(name, Layout):
        return name
    return Layout((name,), lambda parts, _: parts[0], lambda whole, _s, _a: [whole])


def transposed(inner: str | Layout) -> Layout:
    """Return a layout with reversed axes: a kernel of (in, out), as in TensorFlow and JAX, for a weight of (out, in).

    Example:
        >>> transposed("bert.pooler.dense.weight").names
        ('bert.pooler.dense.weight',)
    """
    return _rearranged(inner, lambda whole, _: whole.T, lambda whole, _: whole.T)


def permuted(inner: str | Layout, axes: Sequence[int]) -> Layout:
    """Return a layout with permuted axes: axis i is axis `axes[i]` of `inner`, as in `numpy.transpose`.

    Args:
        inner: a name or a layout.
        axes: each axis of `inner` once.

    Raises:
        UsageError: `axes` is not a permutation.

    Example:
        A weight of (heads, in, d), as in TransformerLens; `per_head` gives (heads, d, in):

        >>> a = load_golden("tiny").checkpoint.architecture
        >>> permuted(per_head("q"), (0, 2, 1)).pack([np.zeros((32, 32))], a).shape
        (4, 32, 8)
    """
    order = tuple(axes)
    if sorted(order) != list(range(len(order))):
        raise UsageError(f"permuted() was given the axes {order}, expected each of 0 to n - 1 once, such as (0, 2, 1)")
    return _rearranged(inner, lambda whole, _: whole.transpose(order), lambda whole, _: whole.transpose(np.argsort(order)))


def _rearranged(
    inner: str | Layout, there: Callable[[Array, Architecture], Array], back: Callable[[Array, Architecture], Array]
) -> Layout:
    """Return a layout that applies `there` after packing and its inverse `back` before unpacking."""
    layout = plain(inner)
    return replace(
        layout,
        pack=lambda parts, a: there(layout.pack(parts, a), a),
        unpack=lambda whole, shapes, a: layout.unpack(back(whole, a), shapes, a),
    )


def fused(*inners: str | Layout, axis: int = 0) -> Layout:
    """Return a layout that concatenates several layouts along `axis`: query, key and value in one product.

    Example:
        >>> attention = "bert.encoder.layer.{layer}.attention.self"
        >>> fused(*(f"{attention}.{part}.weight" for part in ("query", "key", "value"))).names[1]
        'bert.encoder.layer.{layer}.attention.self.key.weight'
    """
    layouts = [plain(i) for i in inners]

    def split(whole: Array, shapes: Sequence[Shape], a: Architecture) -> list[Array]:
        sizes = [x.pack([np.empty(s) for s in ss], a).shape[axis] for x, ss in _shared(layouts, shapes)]
        return np.split(whole, np.cumsum(sizes)[:-1], axis)

    return _joined(layouts, lambda pieces: np.concatenate(pieces, axis), split)


def _joined(
    layouts: Sequence[Layout],
    join: Callable[[Sequence[Array]], Array],
    split: Callable[[Array, Sequence[Shape], Architecture], Iterable[Array]],
) -> Layout:
    """Return the layout that joins what several layouts pack; `split` separates the tensor for parameters of these shapes."""

    def unpack(whole: Array, shapes: Sequence[Shape], a: Architecture) -> list[Array]:
        pieces = zip(_shared(layouts, shapes), split(whole, shapes, a), strict=True)
        return [part for (x, ss), piece in pieces for part in x.unpack(piece, ss, a)]

    return Layout(
        tuple(n for x in layouts for n in x.names),
        lambda parts, a: join([x.pack(p, a) for x, p in _shared(layouts, parts)]),
        unpack,
    )


def per_head(inner: str | Layout, axis: int = 0) -> Layout:
    """Return a layout that splits `axis`, of H features, into two axes, heads and features of a head: (H, in) becomes (h, d, in).

    Example:
        >>> transposed(per_head("q")).names
        ('q',)
    """

    def split(whole: Array, a: Architecture) -> Array:
        at = axis % whole.ndim
        return whole.reshape(*whole.shape[:at], a.num_attention_heads, -1, *whole.shape[at + 1 :])

    def joined(whole: Array, _: Architecture) -> Array:
        at = axis % (whole.ndim - 1)
        return whole.reshape(*whole.shape[:at], -1, *whole.shape[at + 2 :])

    return _rearranged(inner, split, joined)


def interleaved(*inners: str | Layout) -> Layout:
    """Return a layout that interleaves n tensors of (H, …) by head: head 0 of each tensor, then head 1 of each, …: (n H, …).

    Example:
        >>> interleaved("q", "k", "v").names
        ('q', 'k', 'v')
    """
    return _rearranged(
        fused(*(per_head(i) for i in inners), axis=1),  # (h, n d, …)
        lambda heads, _: heads.reshape(-1, *heads.shape[2:]),
        lambda flat, a: flat.reshape(a.num_attention_heads, -1, *flat.shape[1:]),
    )


def stacked(*inners: str | Layout) -> Layout:
    """Return a layout that stacks tensors of one shape along a new first axis: query, key and value as (3, H, in).

    A single layout, with `{layer}` in its names, is stacked over all layers: the first axis is the layer.

    Example:
        >>> stacked("layer.{layer}.bias").across
        True
        >>> stacked("q", "k", "v").pack([np.zeros((32, 32))] * 3, load_golden("tiny").checkpoint.architecture).shape
        (3, 32, 32)
    """
    layouts = [plain(i) for i in inners]
    return _of_layers(layouts[0]) if len(layouts) == 1 else _joined(layouts, np.stack, lambda whole, *_: whole)


def _of_layers(layout: Layout) -> Layout:
    count = len(layout.names)

    def pack(parts: Sequence[Array], a: Architecture) -> Array:
        return np.stack([layout.pack(parts[i : i + count], a) for i in range(0, len(parts), count)])

    def unpack(whole: Array, shapes: Sequence[Shape], a: Architecture) -> list[Array]:
        return [p for i, part in enumerate(whole) for p in layout.unpack(part, shapes[i * count : (i + 1) * count], a)]

    return replace(layout, pack=pack, unpack=unpack, across=True)


def tied(inner: str | Layout) -> Layout:
    """Return a layout for a second use of parameters that are also mapped elsewhere: a decoder tied to the word embeddings.

    Example:
        >>> tied("bert.embeddings.word_embeddings.weight").is_tied
        True
    """
    return replace(plain(inner), is_tied=True)


# The functions that an adaptor may import, by name.
LAYOUTS = {function.__name__: function for function in (fused, interleaved, per_head, permuted, stacked, tied, transposed)}


def _shared(layouts: Sequence[Layout], parts: Sequence[T]) -> list[tuple[Layout, Sequence[T]]]:
    """Return each layout with the parts that belong to it."""
    shared, start = [], 0
    for layout in layouts:
        shared.append((layout, parts[start : start + len(layout.names)]))
        start += len(layout.names)
    return shared


def is_layered(pattern: str) -> bool:
    """Return whether the pattern contains `{layer}` or a multiple of it."""
    return _LAYER.search(pattern) is not None


def in_layer(pattern: str, layer: int) -> str:
    """Return the name that a pattern stands for in a layer.

    Example:
        >>> in_layer("blocks.{2*layer+1}.weight", 3)
        'blocks.7.weight'
    """
    return _LAYER.sub(lambda found: str(int(found[1] or 1) * layer + int(found[2] or 0)), pattern)


def each_layer(pattern: str, text: str) -> str:
    """Return the pattern with a text in place of the layer's index, such as `*` for a shell pattern.

    Example:
        >>> each_layer("blocks.{2*layer+1}.weight", "*")
        'blocks.*.weight'
    """
    return _LAYER.sub(lambda _: text, pattern)


def expanded(pattern: str, layers: int) -> list[str]:
    """Return the name for each layer; the pattern alone if it has no `{layer}`."""
    return [in_layer(pattern, i) for i in range(layers)] if is_layered(pattern) else [pattern]


def entries_of(pattern: str, layout: Layout, a: Architecture) -> Iterator[tuple[str, Layout, list[str]]]:
    """Yield (state-dict name, layout, parameters) for each layer and each head that the name of a tensor stands for."""
    layers = range(a.num_hidden_layers)
    if layout.across:
        in_layers = [(pattern, [in_layer(n, i) for i in layers for n in layout.names])]
    elif is_layered(pattern):
        in_layers = [(in_layer(pattern, i), [in_layer(n, i) for n in layout.names]) for i in layers]
    else:
        in_layers = [(pattern, list(layout.names))]
    for name, parameters in in_layers:
        if HEAD in name:
            for head in range(a.num_attention_heads):
                yield name.replace(HEAD, str(head)), _of_head(layout, head), parameters
        else:
            yield name, layout, parameters


def _of_head(layout: Layout, head: int) -> Layout:
    """Return the layout of the tensor of one head; only the first counts as a use of the parameters."""

    def among_zeros(part: Array, a: Architecture) -> Array:
        whole = np.zeros((a.num_attention_heads, *part.shape))
        whole[head] = part
        return whole

    of_head = _rearranged(layout, lambda whole, _: whole[head], among_zeros)
    return replace(of_head, is_tied=layout.is_tied or head > 0, is_of_head=True)
