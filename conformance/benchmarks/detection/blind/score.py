"""What the suite makes of the blind mistakes, as a table of counts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from conformance import Architecture, Golden, Result, check, load_golden
from conformance.benchmarks.detection.blind.port import Mistake

_OUTSIDE = ("embeddings.", "pooler.", "cls.")


@dataclass(frozen=True)
class Outcome:
    """What came of one mistake.

    Attributes:
        placed: every origin that it has, and none besides, is an origin of the result.
        misplaced: an activation is called an origin that is none.
        naming: `right`, `none` where something has no name and no name is wrong, or `wrong`.
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


def outcomes(golden: str, dtype: str, mistakes: Iterable[Mistake], right: Mapping[str, tuple[str, ...]]) -> Iterator[Outcome]:
    """Of each mistake that the golden's architecture can have and that changes anything there; `right` has what to call it.

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
            yield outcome(mistake, result, origins(mistake, architecture), right[mistake.name])


def _changes(mistake: Mistake, golden: Golden, dtype: str) -> bool:
    """Whether any activation differs from that of the port without it."""
    without = replace(mistake, operations={}, load=None)
    ((_, batch),) = golden.batches.items()
    made, right = (m.prepare(golden.checkpoint, "cpu", dtype)(batch.on("cpu")) for m in (mistake, without))
    return any(not torch.equal(value, right[name]) for name, value in made.items())


def outcome(mistake: Mistake, result: Result, expected: frozenset[str], names: Iterable[str]) -> Outcome:
    """The result, compared with what was planted and what that is rightly called."""
    found = {verdict.activation for verdict in result.origins}
    reported, right = [{finding.name, *finding.others} for finding in result.findings], set(names)
    is_wrong = any(None not in group and not group & right for group in reported)
    is_right = bool(reported) and all(group & right for group in reported)
    return Outcome(
        result.case.golden,
        result.case.dtype,
        mistake.name,
        result.outcome == "fail",
        found == expected,
        bool(found - expected),
        "wrong" if is_wrong else "right" if is_right else "none",
    )


def table(found: Iterable[Outcome]) -> str:
    """A row for each golden and format, then what is missing from it."""
    rows: dict[tuple[str, str], list[Outcome]] = {}
    for one in found:
        rows.setdefault((one.golden, one.dtype), []).append(one)
    lines = [
        "| golden | dtype | mistakes | detected | placed exactly | misplaced | named rightly | no name | named wrongly |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_row(*key, group) for key, group in rows.items()),
        "",
        *(f"- {key[0]}, {key[1]}: {text}" for key, group in rows.items() for text in _short_of(group)),
    ]
    return "\n".join(lines) + "\n"


def _row(golden: str, dtype: str, group: list[Outcome]) -> str:
    naming = [sum(o.naming == kind for o in group if o.detected) for kind in ("right", "none", "wrong")]
    counts = [len(group), sum(o.detected for o in group), sum(o.placed for o in group), sum(o.misplaced for o in group), *naming]
    return f"| {golden} | {dtype} | {' | '.join(map(str, counts))} |"


def _short_of(group: list[Outcome]) -> Iterator[str]:
    kinds = {
        "not detected": [o for o in group if not o.detected],
        "not placed exactly": [o for o in group if o.detected and not o.placed],
        "no name": [o for o in group if o.detected and o.naming == "none"],
        "named wrongly": [o for o in group if o.detected and o.naming == "wrong"],
    }
    return (f"{kind}: {'; '.join(o.mistake for o in missing)}" for kind, missing in kinds.items() if missing)
