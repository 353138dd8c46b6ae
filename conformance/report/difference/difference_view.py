"""View of two traces side by side: beginnings of their difference, mistakes of each, and every activation. Pure functions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.checks.trace import Trace
from conformance.goldens.custom_golden import PREFIX
from conformance.model.activations import placed, table
from conformance.report.coverage_sentences import rendered
from conformance.report.difference.difference import Difference
from conformance.report.finding_sentences import where
from conformance.report.findings import findings
from conformance.results.records import ActivationRecord

Records = Sequence[ActivationRecord]


@dataclass(frozen=True)
class Side:
    """One of the two traces, `A` or `B`, judged alone.

    Attributes:
        setting: device and format.
        shown: number of activations that the trace exposes.
        mistakes: its mistakes, each as a sentence followed by details.
        fails: short description of the activations that fail; empty if none fails.
    """

    letter: str
    name: str
    setting: str
    shown: int
    mistakes: tuple[tuple[str, ...], ...]
    fails: str

    @property
    def verdict(self) -> str:
        """The verdict on this trace alone; empty if it has mistakes, which are listed instead."""
        if self.mistakes:
            return ""
        return f"fails at {self.fails}" if self.fails else "no error when judged alone"


@dataclass(frozen=True)
class DifferenceRow:
    """The differences at one activation.

    Attributes:
        group, name: part of the network that the activation belongs to, and name of the activation within that part.
        worst: difference on the batch where it is worst.
        begins, batches: number of batches on which a difference beyond rounding begins at this activation, of how many.
    """

    group: str
    name: str
    worst: Difference
    begins: int
    batches: int

    @property
    def mark(self) -> str:
        """The remark on this row: `only A`, `only B`, `begins here` or `begins in n of m`, or the empty text.

        If the RMS is within its limit, the remark also has the largest element and its limit.
        """
        d = self.worst
        if d.only:
            return f"only {d.only}"
        if not d.begins:
            return ""
        times = f"begins in {self.begins} of {self.batches}" if self.batches > 1 else "begins here"
        within = d.local is not None and d.limit is not None and d.local <= d.limit
        return times + (f": max {d.local_max:.3g} σ, limit {d.max_limit:.3g} σ" if within else "")


@dataclass(frozen=True)
class DifferenceView:
    """All differences between two traces.

    Attributes:
        network: name of the golden or checkpoint that both ran on.
        batches: names of the batches, worst first.
        differences: differences for each activation and batch, as computed.
        rows: one row for each activation, in the order of computation.
        begins: short description of the activations at which a difference beyond rounding begins; empty if there is none.
    """

    network: str
    sides: tuple[Side, Side]
    batches: tuple[str, ...]
    differences: tuple[Difference, ...]
    rows: tuple[DifferenceRow, ...]
    begins: str

    @property
    def both(self) -> int:
        """Number of activations that both traces expose."""
        return sum(not row.worst.only for row in self.rows)

    @property
    def names(self) -> tuple[str, str]:
        """The names of the two traces, followed by their letters if the names are equal."""
        a, b = self.sides
        return (a.name, b.name) if a.name != b.name else (f"{a.name} (A)", f"{b.name} (B)")

    @property
    def sentence(self) -> str:
        """One sentence with the subject of the comparison and the steps at which the difference begins."""
        verdict = f"the difference begins at {self.begins}" if self.begins else "no difference beyond rounding"
        return f"{' and '.join(self.names)} on {self.network}, {self.both} activations in common: {verdict}"

    @property
    def exit_code(self) -> int:
        """The exit code: 1 if a difference beyond rounding begins at any activation, else 0."""
        return int(bool(self.begins))


def difference_view(
    differences: Iterable[Difference], traces: tuple[Trace, Trace], judged: tuple[Records, Records]
) -> DifferenceView:
    """Return the view of two traces, given the differences from `compare`, and the records of each trace from `judged`."""
    found = tuple(differences)
    first, layers = traces[0], traces[0].architecture.num_hidden_layers
    sides = tuple(_side(letter, t, records, layers) for letter, t, records in zip("AB", traces, judged, strict=True))
    network = Path(first.golden).name if first.golden.startswith(PREFIX) else first.golden
    begins = dict.fromkeys(d.activation for d in found if d.begins)
    return DifferenceView(
        network, (sides[0], sides[1]), _worst_first(found), found, _rows(found, traces), where(list(begins), layers)
    )


def rows_of(view: DifferenceView, batch: str) -> tuple[DifferenceRow, ...]:
    """Return the rows for one batch."""
    places = {row.worst.activation: (row.group, row.name) for row in view.rows}
    return tuple(DifferenceRow(*places[d.activation], d, int(d.begins), 1) for d in view.differences if d.batch == batch)


def _side(letter: str, trace: Trace, records: Records, layers: int) -> Side:
    mistakes = tuple(tuple(rendered(finding, layers)) for finding in findings(records))
    failed = dict.fromkeys(r.activation for r in records if r.outcome == "fail")
    shown = {name for found in trace.activations.values() for name in found}
    return Side(letter, trace.name, f"{trace.device}, {trace.dtype}", len(shown), mistakes, where(list(failed), layers))


def _rows(found: Sequence[Difference], traces: tuple[Trace, Trace]) -> tuple[DifferenceRow, ...]:
    """Return one row for each activation, in the order of computation."""
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
