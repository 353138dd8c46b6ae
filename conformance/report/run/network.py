"""The network from its input to its output, a row an activation, with local and global error beside the allowed band."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from conformance.model.activations import placed
from conformance.report.html.axis import axis_of, sigma
from conformance.results.outcomes import OUTCOME_TEXT, Outcome, severity
from conformance.results.records import ActivationRecord


@dataclass(frozen=True)
class NetworkRow:
    """One activation, on the batch on which it is worst.

    Attributes:
        name: within its group.
        outcome: of all batches, the worst.
        mark: `origin`, `amplifier`, `attenuator`, `known failure`, `not observed` or nothing.
        local, largest, overall: RMS and largest local error and RMS of the global one, in sigma.
        band, local_at, overall_at: where the limit and the errors stand on the axis, in percent.
        note: what else is to be said.
    """

    name: str
    outcome: Outcome
    mark: str
    local: str = ""
    largest: str = ""
    overall: str = ""
    band: float | None = None
    local_at: float | None = None
    overall_at: float | None = None
    note: str = ""

    @property
    def broken(self) -> Markup:
        """Its name, with leave to break the line after a dot."""
        return Markup(".<wbr>").join(self.name.split("."))

    @property
    def css(self) -> str:
        """The class of its row."""
        return "unseen-one" if self.outcome == "not_observed" else self.mark.partition(" ")[0]


@dataclass(frozen=True)
class Part:
    """A part of the network: embeddings, a layer, or what comes after the last."""

    name: str
    rows: tuple[NetworkRow, ...]

    @property
    def fails(self) -> bool:
        """Whether an activation fails, as is known or not."""
        return any(row.outcome in ("fail", "xfail") for row in self.rows)

    @property
    def rendered(self) -> str:
        """How many activations are right, wrong and not observed."""
        counts = Counter(OUTCOME_TEXT[row.outcome].of_activation for row in self.rows)
        texts = dict.fromkeys(outcome.of_activation for outcome in OUTCOME_TEXT.values())
        return ", ".join(f"{counts[text]} {text}" for text in texts if counts[text])


@dataclass(frozen=True)
class Walk:
    """All of it: its parts in the order of computation, and the axis's ticks."""

    parts: tuple[Part, ...]
    ticks: tuple[tuple[float, str], ...]

    @property
    def fails(self) -> bool:
        """Whether any of it does."""
        return any(part.fails for part in self.parts)


def walk(activations: Sequence[ActivationRecord]) -> Walk:
    """Of one case."""
    by_name: dict[str, list[ActivationRecord]] = {}
    for a in activations:
        by_name.setdefault(a.activation, []).append(a)
    worst = {name: max(found, key=_badness) for name, found in by_name.items()}
    errors = [e.rms for a in worst.values() for e in (a.local, a.overall) if e]
    axis = axis_of(errors)
    groups: dict[str, list[NetworkRow]] = {}
    for name, a in worst.items():
        group, short = placed(name)
        if a.outcome == "not_observed":
            row = NetworkRow(short, a.outcome, "not observed", note=a.reason)
        else:
            local, overall = (e.rms if e else None for e in (a.local, a.overall))
            limit = a.limits.get("rms") if local is not None else None
            row = NetworkRow(
                short,
                a.outcome,
                _mark(a),
                _rendered(a),
                sigma(a.local.max if a.local else None),
                sigma(overall),
                axis.at(limit),
                axis.at(local),
                axis.at(overall),
                _note(a, by_name[name]),
            )
        groups.setdefault(group, []).append(row)
    return Walk(tuple(Part(group, tuple(rows)) for group, rows in groups.items()), axis.ticks)


def _badness(a: ActivationRecord) -> tuple[int, float]:
    if a.outcome == "not_observed":
        return -1, 0.0
    rank = severity(a.outcome)
    return rank, float("inf") if a.excess is None and rank else a.excess or 0.0


def _mark(a: ActivationRecord) -> str:
    return "known failure" if a.outcome == "xfail" else a.role or ""


def _rendered(a: ActivationRecord) -> str:
    if a.local is None:
        return ""
    if a.local.rms is None:
        return "exact" if a.outcome == "pass" else "differs"
    return sigma(a.local.rms)


def _note(a: ActivationRecord, batches: Iterable[ActivationRecord]) -> str:
    batches = list(batches)
    failing = sum(b.outcome == a.outcome for b in batches)
    many = f"in {failing} of {len(batches)} batches" if a.outcome in ("fail", "xfail") and len(batches) > 1 else ""
    return "; ".join(part for part in (a.reason, many) if part)
