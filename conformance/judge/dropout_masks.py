"""Tests of dropout masks: whether elements are dropped at the right rate and independently.

Of n elements that are dropped independently with probability p, the number dropped is binomial. Of n disjoint pairs of elements,
the number of pairs that agree (both kept, or both dropped) is binomial with probability p² + (1 − p)². All p-values are exact, and
two-sided by doubling the smaller tail. Pairs are neighbours along each axis of a mask, the same element in two masks of one shape,
and the same element in two calls: masks that are shared by rows, heads, tokens, features, layers or calls agree too often.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from conformance.model.activation import Activation
from conformance.model.activations import rate_of, setting_of
from conformance.model.architecture import Architecture
from conformance.numerics.formats import Mask, neighbours
from conformance.numerics.thresholds import BinomialCount, sidak_share


def requested(rates: str) -> str:
    """Return a clause that says at which rates a check asks a candidate to drop, and why these are not the golden's."""
    return f"this check asks for {rates} in the config, with another value of every rate, so that none is taken for another"


@dataclass(frozen=True)
class Draw:
    """A dropout mask drawn by a candidate.

    Attributes:
        row: the dropout.
        rate: p, the probability with which an element is to be dropped.
        setting: the config's name of the rate.
        kept: whether each element was kept.
        known: where the mask can be observed: where the input of the dropout was not already 0.
    """

    row: Activation
    rate: float
    setting: str
    kept: Mask
    known: Mask

    @classmethod
    def of(cls, row: Activation, a: Architecture, kept: Mask, known: Mask) -> "Draw":
        """Return the mask with the dropout rate of an architecture."""
        return cls(row, rate_of(row.name, a), setting_of(row.name), kept, known)


@dataclass(frozen=True)
class _Count(BinomialCount):
    """The number of dropped elements, or of pairs of elements that agree.

    Attributes:
        name: name of the dropout.
        wrong: description of the error if the number is not due to chance.
        other: the dropout that it is compared with; the comparison counts only if the rate of this dropout is right.
    """

    name: str
    wrong: str
    other: str = ""


def wrong_draws(calls: Sequence[Mapping[str, Draw]], total: float) -> list[dict[str, str]]:
    """Return, for each call on the same batch, descriptions of the wrong dropout masks, by name of the dropout.

    Args:
        calls: the masks drawn in each call, by name of the dropout.
        total: false-alarm probability of the whole test.

    Example:
        >>> import numpy as np
        >>> from conformance import load_golden
        >>> from conformance.model.activations import dropouts
        >>> a = load_golden("tiny").checkpoint.architecture
        >>> row, seen = dropouts(a)["embeddings.dropout"], np.ones((4, 16, 32), bool)
        >>> fair = np.random.default_rng(0).random(seen.shape) >= 0.1
        >>> wrong_draws([{row.name: Draw.of(row, a, fair, seen)}], 1e-6)
        [{}]
        >>> wrong_draws([{row.name: Draw.of(row, a, seen, seen)}], 1e-6)[0][row.name].partition(" in the config")[0]
        'nothing of 2048 elements is dropped; this check asks for hidden_dropout_prob = 0.1'
    """
    rates = [{name: _rate(draw) for name, draw in call.items()} for call in calls]
    within = [list(_within(call)) for call in calls]
    between = [list(_between(before, after)) for before, after in pairwise(calls)]
    alpha = sidak_share(sum(len(counts) for counts in (*rates, *within, *between)), total)
    found: list[dict[str, str]] = []
    for i, counts in enumerate(rates):
        agreements = [count for count in (*within[i], *(between[i - 1] if i else ())) if not count.is_chance(alpha)]
        rates_wrong = {name: count for name, count in counts.items() if not count.is_chance(alpha)}
        idle = {name for name, count in counts.items() if not count.found or count.is_every}
        # Copies of one draw are no independent trials of the rate, so fully repeated masks take precedence over wrong rates.
        repeated = {c.name: c.wrong for c in agreements if c.is_every and not {c.name, c.other} & idle}
        partly = {c.name: c.wrong for c in reversed(agreements) if not {c.name, c.other} & rates_wrong.keys()}
        found.append({**partly, **{name: count.wrong for name, count in rates_wrong.items()}, **repeated})
    return found


def _rate(draw: Draw) -> _Count:
    n, dropped = int(draw.known.sum()), int((draw.known & ~draw.kept).sum())
    found = f"{100.0 * dropped / n:.3g} % of {n} elements are dropped" if dropped else f"nothing of {n} elements is dropped"
    return _Count(dropped, n, draw.rate, draw.row.name, f"{found}; {requested(f'{draw.setting} = {draw.rate:g}')}")


def _within(call: Mapping[str, Draw]) -> Iterator[_Count]:
    """Yield the agreement of neighbours along each axis, and of each two masks with the same shape and rate."""
    for draw in call.values():
        for axis, what in enumerate(draw.row.axes):
            if draw.kept.shape[axis] > 1:
                yield _neighbours(draw, axis, what)
    for one, other in combinations(call.values(), 2):
        if one.rate == other.rate and one.kept.shape == other.kept.shape:
            yield _agreement(other, (one.kept, other.kept), one.known & other.known, f"what {one.row.name} keeps", one.row.name)


def _between(before: Mapping[str, Draw], after: Mapping[str, Draw]) -> Iterator[_Count]:
    for name, draw in after.items():
        if name in before:
            earlier = before[name]
            yield _agreement(draw, (earlier.kept, draw.kept), earlier.known & draw.known, "what the call before kept")


def _neighbours(draw: Draw, axis: int, what: str) -> _Count:
    """Return the agreement of elements 0 and 1, 2 and 3, and so on along an axis."""
    first, second = neighbours(draw.known, axis)
    return _agreement(draw, neighbours(draw.kept, axis), first & second, f"itself along the axis `{what}`")


def _agreement(draw: Draw, masks: tuple[Mask, Mask], known: Mask, what: str, other: str = "") -> _Count:
    p, n, (one, two) = draw.rate, int(known.sum()), masks
    agree, probability = int((known & (one == two)).sum()), p**2 + (1.0 - p) ** 2
    wrong = f"the mask repeats {what}: {agree / max(n, 1):.3g} of {n} pairs agree, where {probability:.3g} do by chance"
    return _Count(agree, n, probability, draw.row.name, wrong, other)
