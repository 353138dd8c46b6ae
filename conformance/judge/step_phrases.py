"""Names of steps in words, by layer: `every layer, attention.output.LayerNorm`, `layers 0 to 2, output.dense`, `pooler.dense`."""

from collections.abc import Callable, Iterable, Sequence

from conformance.judge.number_words import enumerated
from conformance.model.activations import LAYER


def ranged(numbers: Sequence[int]) -> str:
    """Return numbers in ascending order as text; three or more that are all consecutive are given as a range."""
    is_range = len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} to {numbers[-1]}" if is_range else ", ".join(map(str, numbers))


def backward_place(gradient: str, step: str) -> str:
    """Return a gradient's name, after that of the forward step whose backward pass yields it, if that is known.

    The result is a name of a step for `phrases`.

    Example:
        >>> backward_place("encoder.layer.0.attention.output.dropout.grad", "encoder.layer.0.attention.output.LayerNorm")
        'encoder.layer.0.backward pass of attention.output.LayerNorm, seen in attention.output.dropout.grad'
        >>> backward_place("pooler.dense.grad", "")
        'pooler.dense.grad'
    """
    if not step:
        return gradient
    seen, of = LAYER.fullmatch(gradient), LAYER.fullmatch(step)
    if seen and of and seen[1] == of[1]:
        return f"encoder.layer.{of[1]}.backward pass of {of[2]}, seen in {seen[2]}"
    return f"backward pass of {step}, seen in {gradient}"


def phrases(steps: Iterable[str], layers: int, numbers: Callable[[Sequence[int]], str] = ranged) -> list[str]:
    """Return one phrase for the steps of each set of layers, and one for those outside the layers, in order of appearance.

    Args:
        steps: names of steps.
        layers: number of layers of the network.
        numbers: returns the numbers of two or more layers, in ascending order, as text.

    Example:
        >>> phrases(["encoder.layer.0.output.dense", "pooler.dense", "encoder.layer.1.output.dense"], 12)
        ['layers 0, 1, output.dense', 'pooler.dense']
    """
    by_step: dict[str, set[int]] = {}
    for step in steps:
        match = LAYER.fullmatch(step)
        by_step.setdefault(match[2] if match else step, set()).update({int(match[1])} if match else ())
    by_layers: dict[tuple[int, ...], list[str]] = {}
    for step, found in by_step.items():
        by_layers.setdefault(tuple(sorted(found)), []).append(step)
    return [_phrase(found, enumerated(names), layers, numbers) for found, names in by_layers.items()]


def _phrase(found: tuple[int, ...], names: str, layers: int, numbers: Callable[[Sequence[int]], str]) -> str:
    if not found:
        return names
    if len(found) == layers and layers > 1:
        return f"every layer, {names}"
    return f"layer {found[0]}, {names}" if len(found) == 1 else f"layers {numbers(found)}, {names}"
