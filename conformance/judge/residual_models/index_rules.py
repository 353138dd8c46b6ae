"""Rules that describe a map p of places, where slice i of the result holds slice p(i) of the correct value."""

from collections.abc import Iterator

import numpy as np

from conformance.judge.residual_models.residual_problem import Places
from conformance.model.architecture import Architecture

MOST_LISTED = 6  # places that are listed individually


def rules(axis: str, places: Places, moved: Places, architecture: Architecture) -> Iterator[tuple[str, Places]]:
    """Yield each rule that most of the moved slices follow, with its map; last, the map as found, with an empty description."""
    for words, guess in _known(axis, places, moved, architecture):
        if np.mean(guess[moved] == places[moved]) > 0.5:
            yield words, guess
    yield "", places


def _known(axis: str, places: Places, moved: Places, a: Architecture) -> Iterator[tuple[str, Places]]:
    n = len(places)
    own = np.arange(n)
    if len(moved) == 2 and is_order(places):
        yield f"in order but for {moved[0]} and {moved[1]}, which are exchanged", places
    yield "in reverse order", own[::-1].copy()
    shifts, counts = np.unique((places - own)[moved], return_counts=True)
    by = int(shifts[counts.argmax()])
    yield (
        f"shifted: {axis} i has what belongs to {axis} i {'+' if by > 0 else '−'} {abs(by)}, clipped at the end",
        np.clip(own + by, 0, n - 1),
    )
    yield f"shifted in a circle: {axis} i has what belongs to {axis} i {'+' if by > 0 else '−'} {abs(by)}", (own + by) % n
    targets, counts = np.unique(places[moved], return_counts=True)
    yield f"all that of {axis} {targets[counts.argmax()]}", np.full(n, targets[counts.argmax()])
    if n % 2 == 0:
        yield "exchanged in pairs, 2 i with 2 i + 1", own ^ 1
    for groups, size in sorted({(g, n // g) for g in _factors(a, n)} | {(n // g, g) for g in _factors(a, n)}):
        words = f"interleaved: {axis} i has what belongs to {axis} (i mod {groups}) · {size} + ⌊i / {groups}⌋"
        yield words, own % groups * size + own // groups


def _factors(a: Architecture, n: int) -> list[int]:
    return [g for g in (2, a.num_attention_heads, a.head_size) if 1 < g < n and n % g == 0]


def is_order(places: Places) -> bool:
    """Return whether the map is a permutation."""
    return len(np.unique(places)) == len(places)


def rendered(places: Places, moved: Places) -> str:
    """Return a description of the map that lists the first few moved places."""
    order = "in another order" if is_order(places) else "taken from other places"
    listing = ", ".join(f"{i} has what belongs to {places[i]}" for i in moved[:MOST_LISTED])
    return f"{order}: {listing}" + (" …" if len(moved) > MOST_LISTED else "")
