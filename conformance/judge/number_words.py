"""Numbers and places in words: a value with its error, a simple number close to it, sets of indices."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from conformance.faults import Parameter
from conformance.model.architecture import Architecture
from conformance.numerics.thresholds import FALSE_ALARM, projection_threshold

COINCIDENCE = 0.01  # probability that an arbitrary number is called a simple one; it affects wording only, no test
LARGEST_TERM = 8  # largest term of a simple ratio; with it, a value needs a relative error below about 2e-4 to be identified
EXACT = 17  # digits that determine a float64
PIECES = 4  # runs of indices that are listed; more are counted

_PLURALS = {"query": "queries"}


def plural(noun: str) -> str:
    """Return the plural of a noun."""
    return _PLURALS.get(noun, f"{noun}s")


def figure(value: float, deviation: float) -> str:
    """Return the value with the fewest digits that keep it within its deviation (`1e-05`, `0.70711`), or seven if unknown."""
    if not deviation > 0.0 or not math.isfinite(deviation):
        return f"{value:.7g}"
    rounded = (float(f"{value:.{digits}g}") for digits in range(1, EXACT + 1))
    return f"{next((x for x in rounded if abs(x - value) <= deviation), value):.{EXACT - 2}g}"


def near(value: float, deviation: float, goal: float) -> bool:
    """Return whether the value equals the goal within its error, at the false-alarm probability of a run."""
    return abs(value - goal) <= projection_threshold(FALSE_ALARM) * deviation


def hard_coded(parameter: Parameter | None, value: float, deviation: float, right: float) -> tuple[float, ...]:
    """Return the parameter's defaults, other than the config's value, that the value equals within its error.

    The result is empty if the config has BERT's own default: another library's default is then no sign that the config was not
    read.
    """
    if parameter is None or right in parameter.defaults[:1] or not math.isfinite(deviation):
        return ()
    return tuple(default for default in parameter.defaults if default != right and near(value, deviation, default))


def simple(value: float, deviation: float, architecture: Architecture) -> str | None:
    """Return the ratio, root or network size that the value equals within its error, or None if chance could explain it.

    With M simple numbers spread over a range of ln c, an arbitrary number is within t deviations of one with a probability of at
    most M · 2 t · deviation / |value| / ln c.
    """
    if value == 0.0 or not math.isfinite(deviation):
        return None
    names: defaultdict[float, list[str]] = defaultdict(list)
    for text, candidate in _simple_numbers(architecture):
        names[round(candidate, 12)].append(text)
    room = 2.0 * projection_threshold(FALSE_ALARM) * deviation / abs(value)
    if len(names) * room / math.log(max(names) / min(names)) > COINCIDENCE:
        return None
    nearest = min(names, key=lambda c: abs(c - abs(value)))
    if not near(abs(value), deviation, nearest):
        return None
    return ("−" if value < 0 else "") + " = ".join(dict.fromkeys(names[nearest]))


def closed_form(parameter: Parameter, value: float, deviation: float, architecture: Architecture) -> str:
    """Return the roots and network sizes that a parameter's value equals within its error, as `1/√32 = 1/√(the hidden size)`.

    The result is empty if there are none, or if the parameter is not computed from sizes. A mere ratio is left out: digits show it.
    """
    found = simple(value, deviation, architecture) if parameter.is_of_sizes and deviation > 0.0 else None
    texts = found.split(" = ") if found else []
    return " = ".join(text for text in texts if "√" in text or "size" in text)


def _simple_numbers(a: Architecture) -> Iterator[tuple[str, float]]:
    for p in range(1, LARGEST_TERM + 1):
        for q in range(1, LARGEST_TERM + 1):
            if math.gcd(p, q) == 1:
                yield (f"{p}/{q}" if q > 1 else str(p)), p / q
    for n in (2, 3, 5, 6, 7):
        yield f"√{n}", math.sqrt(n)
        yield f"1/√{n}", 1.0 / math.sqrt(n)
    sizes = {"the head size": a.head_size, "the hidden size": a.hidden_size, "the intermediate size": a.intermediate_size}
    for what, size in sizes.items():
        if size > 1:
            yield f"{what}", float(size)
            yield f"1/({what})", 1.0 / size
            yield f"√{size} = √({what})", math.sqrt(size)
            yield f"1/√{size} = 1/√({what})", 1.0 / math.sqrt(size)


def listed(noun: str, indices: Sequence[int], size: int) -> str:
    """Return `heads 1 and 3`, `positions 0 to 4`, `every 4th feature from 3`, `17 of 64 features, the first 2, the last 60`."""
    if len(indices) == 1:
        return f"{noun} {indices[0]}" if indices[0] != size - 1 or size < 3 else f"{noun} {indices[0]}, the last"
    runs = _runs(indices)
    if len(runs) <= PIECES:
        return f"{plural(noun)} {enumerated([_run(run) for run in runs])}"
    steps = {b - a for a, b in pairwise(indices)}
    if len(steps) == 1:
        step = steps.pop()
        return f"every {_ordinal(step)} {noun} from {indices[0]}" + (f" to {indices[-1]}" if indices[-1] + step < size else "")
    return f"{len(indices)} of {size} {plural(noun)}, the first {indices[0]}, the last {indices[-1]}"


def enumerated(texts: Sequence[str]) -> str:
    """Return the texts joined as `a, b and c`."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _runs(indices: Sequence[int]) -> list[list[int]]:
    runs = [[indices[0]]]
    for index in indices[1:]:
        if index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs


def _run(run: Sequence[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}"


def _ordinal(n: int) -> str:
    return "other" if n == 2 else f"{n}{({1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')) if n % 100 not in (11, 12, 13) else 'th'}"
