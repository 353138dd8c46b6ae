"""The steps that a candidate does not expose, between a failing activation and the exposed ones it is judged from.

Records have no parents of activations. They are taken from the table of an architecture with the same names.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from conformance.judge.number_words import enumerated
from conformance.judge.step_phrases import phrases, ranged
from conformance.model.activation import Activation
from conformance.model.activations import LAYER, table
from conformance.model.architecture import COMPATIBLE_HEADS, Architecture
from conformance.results.records import ActivationRecord

NAMED = 3  # maximum number of unexposed steps, and of exposed activations before them, that are listed


def unexposed_steps(name: str, activations: Iterable[ActivationRecord]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the unexposed steps before an activation of a forward pass, and the exposed activations before these.

    Both are in the order of computation, given the records of a case; there are no exposed ones if the steps follow the token ids.
    Steps that copy, such as dropouts in evaluation mode, and exposed ones that arrive too late to be judged are left out.
    """
    records = list(activations)
    unexposed = {a.activation for a in records if a.outcome == "not_observed" and not a.reason}
    refused = {a.activation for a in records if a.outcome != "not_observed" and a.local is None}
    names = tuple(dict.fromkeys(a.activation for a in records))
    rows, before, after, todo = _rows(names), set[str](), set[str](), [name]
    while todo:
        row = rows.get(todo.pop())
        for parent in set(row.parents if row else ()) - before - after:
            is_passed = parent in unexposed or parent not in names
            (before if is_passed else after).add(parent)
            todo += [parent] if is_passed else []
    steps = [n for n in names if n in before and n in unexposed and n not in refused and rows[n].kind != "copy"]
    return tuple(steps), tuple(n for n in names if n in after)


def not_exposed(activations: Iterable[ActivationRecord]) -> str:
    """Return text on how the activations of a case are judged that a candidate does not expose; empty if there are none.

    It is empty, too, for activations of other tables than those of a forward pass, such as gradients.
    """
    records = list(activations)
    names = tuple(dict.fromkeys(a.activation for a in records))
    exposed = {a.activation for a in records if a.outcome != "not_observed"}
    unexposed = [n for n in names if n not in exposed and any(a.activation == n and not a.reason for a in records)]
    rows = _rows(names)
    if not exposed or not unexposed or not all(name in rows for name in unexposed):
        return ""
    judged, todo = set[str](), list(exposed)
    while todo:
        row = rows.get(todo.pop())
        new = set(row.parents) - judged - exposed if row else set[str]()
        judged |= new
        todo += new
    counts = Counter(name.split(".")[0] for name in unexposed if name not in judged)
    parts = ", ".join(f"{part} ({count})" if count > 1 else part for part, count in counts.items())
    before = sum(name in judged for name in unexposed)
    after = len(unexposed) - before
    whole = f"{len(unexposed)} activation{'s are' if len(unexposed) > 1 else ' is'} not exposed"
    if not after:
        return f"{whole}; {'they are' if before > 1 else 'it is'} judged with the next exposed one"
    count = f"{after} of them {'are' if after > 1 else 'is'}" if before else "they are" if after > 1 else "it is"
    rest = "; the others are judged with the next exposed one" if before else ""
    return f"{whole}; {count} not judged, since nothing that depends on {'them' if after > 1 else 'it'} is exposed ({parts}){rest}"


def possibly_before(names: Sequence[str], activations: Iterable[ActivationRecord]) -> str:
    """Return `It may be in this step or in 14 unexposed ones before it, after …`, for an error that is seen at these activations.

    The text is empty if there are no unexposed steps before them.
    """
    records = list(activations)
    steps = [unexposed_steps(name, records) for name in names]
    before = list(dict.fromkeys(name for of, _ in steps for name in of))
    if not before:
        return ""
    start, them = ("It may be in this step or in", "it") if len(names) == 1 else ("It may be in these steps or in", "them")
    if len(before) <= NAMED:
        return f"{start} the unexposed {'one' if len(before) == 1 else 'ones'} before {them}: {enumerated(before)}"
    exposed = steps[0][1] if len(steps) == 1 else ()
    layers = max((int(match[1]) + 1 for name in exposed if (match := LAYER.fullmatch(name))), default=0)
    after = phrases(exposed, layers + 1, _numbered) or ["the token ids"]
    since = f", after {enumerated(after)}" if len(steps) == 1 and len(after) <= NAMED else ""
    return f"{start} {len(before)} unexposed ones before {them}{since}"


def _numbered(layers: Sequence[int]) -> str:
    return ranged(layers) if len(layers) > 2 else enumerated([str(layer) for layer in layers])


@lru_cache(maxsize=8)
def _rows(names: tuple[str, ...]) -> Mapping[str, Activation]:
    """Return the row of each activation of a forward pass among the names, and of those that no candidate need form.

    Of several rows of one name, as of a classifier of tokens or of sequences, the one with the latest parents is taken.
    """
    place = {name: i for i, name in enumerate(names)}
    rows: dict[str, Activation] = {}
    for row in _possible_rows(names):
        if row.name in place or row.is_internal:
            rows[row.name] = max(rows.get(row.name, row), row, key=lambda r: _latest(r, place))
    return rows


def _latest(row: Activation, place: Mapping[str, int]) -> int:
    return max((place.get(parent, -1) for parent in row.parents), default=-1)


def _possible_rows(names: Sequence[str]) -> Iterator[Activation]:
    """Yield the rows of every architecture whose embeddings and layers have these names."""

    def has(part: str) -> bool:
        return any(part in name for name in names)

    cross = has(".crossattention.")
    least = Architecture(
        vocab_size=1,
        hidden_size=1,
        num_hidden_layers=max((int(match[1]) + 1 for name in names if (match := LAYER.fullmatch(name))), default=0),
        num_attention_heads=1,
        intermediate_size=1,
        max_position_embeddings=1,
        embedding_norm="embeddings.sum" not in names,
        position_embedding_type="relative_key_query" if has(".distance_embedding") else "absolute",
        is_decoder=cross,
        add_cross_attention=cross,
        classifier_dropout=0.1 if "dropout" in names else None,
        activation_dropout=0.1 if has(".intermediate.dropout") else 0.0,
    )
    for heads in COMPATIBLE_HEADS:
        yield from table(least.with_(heads=heads)).values()
    for normalize in (False, True):
        yield from table(least.with_(pooling="mean", normalize=normalize)).values()
