"""What the suite makes of the blind mistakes, as a table of counts."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from conformance import Architecture, Golden, Result, check, load_golden
from conformance.benchmarks.detection.blind.port import Mistake
from conformance.results.result import NamedFinding

_OUTSIDE = ("embeddings.", "pooler.", "cls.")
_NAMINGS = {"right": "named rightly", "none": "no name", "wrong": "named wrongly"}
_HEADINGS = (_NAMINGS, {"right": "named rightly", "described": "described", **_NAMINGS})  # without and with descriptions


@dataclass(frozen=True)
class Outcome:
    """What came of one mistake.

    Attributes:
        placed: every origin that it has, and none besides, is an origin of the result.
        misplaced: an activation is called an origin that is none.
        naming: `right`; `described` where all that is found is named rightly or only described, and truly; `none` where something
            has neither name nor true description and nothing is wrong; or `wrong`.
    """

    golden: str
    dtype: str
    mistake: str
    detected: bool
    placed: bool
    misplaced: bool
    naming: str


def origins(mistake: Mistake, architecture: Architecture) -> frozenset[str]:
    """The activations at which it begins."""
    within = [name for name in mistake.origins if not name.startswith(_OUTSIDE)]
    layers = (f"encoder.layer.{layer}.{name}" for layer in mistake.layers(architecture) for name in within)
    return frozenset([*layers, *(name for name in mistake.origins if name.startswith(_OUTSIDE))])


def outcomes(
    golden: str,
    dtype: str,
    mistakes: Iterable[Mistake],
    right: Mapping[str, tuple[str, ...]],
    described: Mapping[str, tuple[str, ...]] = {},
) -> Iterator[Outcome]:
    """Of each mistake that the golden's architecture can have and that changes anything there.

    Args:
        golden: the golden's name.
        dtype: the format.
        mistakes: the mistakes.
        right: what to call each.
        described: which descriptions (`NamedFinding.is_description`) are true of each, although they say less than its name.

    Raises:
        RuntimeError: a candidate could not be judged.
    """
    given = load_golden(golden)
    architecture = given.checkpoint.architecture
    for mistake in mistakes:
        if mistake.layers(architecture) and _changes(mistake, given, dtype):
            result = check(mistake, golden, dtype=dtype)
            if result.outcome not in ("pass", "fail"):
                raise RuntimeError(f"{mistake.name}: {result.outcome}: {result.reason}")
            expected, true = origins(mistake, architecture), described.get(mistake.name, ())
            yield outcome(mistake, result, expected, right[mistake.name], true)


def _changes(mistake: Mistake, golden: Golden, dtype: str) -> bool:
    """Whether any activation differs from that of the port without it."""
    without = replace(mistake, operations={}, load=None)
    ((_, batch),) = golden.batches.items()
    made, right = (m.prepare(golden.checkpoint, "cpu", dtype)(batch.on("cpu")) for m in (mistake, without))
    return any(not torch.equal(value, right[name]) for name, value in made.items())


def outcome(
    mistake: Mistake, result: Result, expected: frozenset[str], right: Collection[str], described: Collection[str] = ()
) -> Outcome:
    """The result, compared with what was planted, what that is rightly called, and what is a true description of it."""
    found = {verdict.activation for verdict in result.origins}
    return Outcome(
        result.case.golden,
        result.case.dtype,
        mistake.name,
        result.outcome == "fail",
        found == expected,
        bool(found - expected),
        _naming_of_all({_naming(finding, right, described) for finding in result.findings}),
    )


def _naming(finding: NamedFinding, right: Collection[str], described: Collection[str]) -> str:
    """How one finding is named; a description that is not known to be true counts as a wrong name."""
    reported = {finding.name, *finding.others}
    if not reported.isdisjoint(right):
        return "right"
    if None in reported:
        return "none"
    return "described" if finding.is_description and not reported.isdisjoint(described) else "wrong"


def _naming_of_all(each: Collection[str]) -> str:
    """The worst of all findings; `none` if there is no finding."""
    return next((naming for naming in ("wrong", "none", "described", "right") if naming in each), "none")


def table(found: Iterable[Outcome], *, with_described: bool = False) -> str:
    """A row for each golden and format, then what is missing from it; with a column of descriptions if asked for."""
    rows: dict[tuple[str, str], list[Outcome]] = {}
    for one in found:
        rows.setdefault((one.golden, one.dtype), []).append(one)
    lines = [
        _joined("golden", "dtype", "mistakes", "detected", "placed exactly", "misplaced", *_HEADINGS[with_described].values()),
        _joined(*["---"] * (6 + len(_HEADINGS[with_described]))),
        *(_row(*key, group, _HEADINGS[with_described]) for key, group in rows.items()),
        "",
        *(f"- {key[0]}, {key[1]}: {text}" for key, group in rows.items() for text in _short_of(group)),
    ]
    return "\n".join(lines) + "\n"


def _joined(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _row(golden: str, dtype: str, group: list[Outcome], namings: Iterable[str]) -> str:
    counts = [len(group), sum(o.detected for o in group), sum(o.placed for o in group), sum(o.misplaced for o in group)]
    return _joined(golden, dtype, *counts, *(sum(o.naming == kind for o in group if o.detected) for kind in namings))


def _short_of(group: list[Outcome]) -> Iterator[str]:
    kinds = {
        "not detected": [o for o in group if not o.detected],
        "not placed exactly": [o for o in group if o.detected and not o.placed],
        "described": [o for o in group if o.detected and o.naming == "described"],
        "no name": [o for o in group if o.detected and o.naming == "none"],
        "named wrongly": [o for o in group if o.detected and o.naming == "wrong"],
    }
    return (f"{kind}: {'; '.join(o.mistake for o in missing)}" for kind, missing in kinds.items() if missing)
