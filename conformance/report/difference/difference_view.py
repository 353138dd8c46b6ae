"""Two traces side by side: where their difference begins, what is wrong with each, and every activation. Pure functions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.checks.trace import Trace
from conformance.goldens.custom_golden import PREFIX
from conformance.model.activations import placed, table
from conformance.report.difference.difference import Difference
from conformance.report.findings import findings, where
from conformance.report.words import rendered
from conformance.results.records import ActivationRecord

Records = Sequence[ActivationRecord]


@dataclass(frozen=True)
class Side:
    """One of the two.

    Attributes:
        letter: `A` or `B`.
        name, setting: who ran, and on which device in which format.
        shown: how many activations it exposes.
        mistakes: what is wrong with it by itself: a sentence each, then what is known of it.
        fails: where it fails, in short; empty where it does not.
    """

    letter: str
    name: str
    setting: str
    shown: int
    mistakes: tuple[tuple[str, ...], ...]
    fails: str

    @property
    def verdict(self) -> str:
        """What is wrong with it by itself, where there is no mistake that says it."""
        if self.mistakes:
            return ""
        return f"fails at {self.fails}" if self.fails else "no error when judged alone"


@dataclass(frozen=True)
class DifferenceRow:
    """One activation.

    Attributes:
        group, name: the part of the network that it belongs to, and its name within.
        worst: its difference on the batch on which it is worst.
        begins: on how many of its batches more than rounding begins here.
        batches: how many these are.
    """

    group: str
    name: str
    worst: Difference
    begins: int
    batches: int

    @property
    def mark(self) -> str:
        """`begins here` (in how many batches), `only A`, `only B` or nothing; with why, where the RMS does not say it."""
        d = self.worst
        if d.only:
            return f"only {d.only}"
        if not d.begins:
            return ""
        times = f"begins in {self.begins} of {self.batches}" if self.batches > 1 else "begins here"
        within = d.local is not None and d.limit is not None and d.local <= d.limit
        return times + (f": largest {d.local_max:.3g} σ, limit {d.max_limit:.3g} σ" if within else "")


@dataclass(frozen=True)
class DifferenceView:
    """All of it.

    Attributes:
        network: what they ran on.
        sides: A and B.
        batches: the names, worst first.
        differences: an activation of a batch each, as they came.
        rows: an activation each, in the order of computation.
        begins: the activations at which more than rounding begins, in short.
    """

    network: str
    sides: tuple[Side, Side]
    batches: tuple[str, ...]
    differences: tuple[Difference, ...]
    rows: tuple[DifferenceRow, ...]
    begins: str

    @property
    def both(self) -> int:
        """How many activations both expose."""
        return sum(not row.worst.only for row in self.rows)

    @property
    def names(self) -> tuple[str, str]:
        """What the two are called, with their letters where they are called the same."""
        a, b = self.sides
        return (a.name, b.name) if a.name != b.name else (f"{a.name} (A)", f"{b.name} (B)")

    @property
    def sentence(self) -> str:
        """What was compared, and where the difference begins."""
        verdict = f"the difference begins at {self.begins}" if self.begins else "no difference beyond rounding"
        return f"{' and '.join(self.names)} on {self.network}, {self.both} activations in common: {verdict}"

    @property
    def exit_code(self) -> int:
        """1 where more than rounding begins anywhere."""
        return int(bool(self.begins))


def difference_view(
    differences: Iterable[Difference], traces: tuple[Trace, Trace], judged: tuple[Records, Records]
) -> DifferenceView:
    """Of what `compare` says of two traces, and `judged` of each."""
    found = tuple(differences)
    first, layers = traces[0], traces[0].architecture.num_hidden_layers
    sides = tuple(_side(letter, t, records, layers) for letter, t, records in zip("AB", traces, judged, strict=True))
    network = Path(first.golden).name if first.golden.startswith(PREFIX) else first.golden
    begins = dict.fromkeys(d.activation for d in found if d.begins)
    return DifferenceView(
        network, (sides[0], sides[1]), _worst_first(found), found, _rows(found, traces), where(list(begins), layers)
    )


def rows_of(view: DifferenceView, batch: str) -> tuple[DifferenceRow, ...]:
    """The rows of one batch alone."""
    places = {row.worst.activation: (row.group, row.name) for row in view.rows}
    return tuple(DifferenceRow(*places[d.activation], d, int(d.begins), 1) for d in view.differences if d.batch == batch)


def _side(letter: str, trace: Trace, records: Records, layers: int) -> Side:
    mistakes = tuple(tuple(rendered(finding, layers)) for finding in findings(records))
    failed = dict.fromkeys(r.activation for r in records if r.outcome == "fail")
    shown = {name for found in trace.activations.values() for name in found}
    return Side(letter, trace.name, f"{trace.device}, {trace.dtype}", len(shown), mistakes, where(list(failed), layers))


def _rows(found: Sequence[Difference], traces: tuple[Trace, Trace]) -> tuple[DifferenceRow, ...]:
    """In the order of computation, which each batch has by itself."""
    known = table(traces[0].architecture)
    by_name: dict[str, list[Difference]] = {name: [] for name in known}
    for d in found:
        by_name[d.activation].append(d)
    return tuple(
        DifferenceRow(*placed(name), max(of_one, key=_size), sum(d.begins for d in of_one), len(of_one))
        for name, of_one in by_name.items()
        if of_one
    )


def _worst_first(found: Sequence[Difference]) -> tuple[str, ...]:
    batches = dict.fromkeys(d.batch for d in found)
    return tuple(sorted(batches, key=lambda batch: _size(max((d for d in found if d.batch == batch), key=_size)), reverse=True))


def _size(d: Difference) -> tuple[bool, float, float]:
    return not d.only, d.excess, d.accumulated or 0.0
