"""Two candidates, activation by activation: each is judged against the oracle, and their values are compared.

A difference begins where one of them has a mistake that the other has not: a step that is right in both, given its own inputs, adds
no more than rounding, however large the difference is that it passes on. Two errors without a name at the same steps count as one
mistake if rounding explains that their sizes differ: with one error s and roundings r and q, |‖s + r‖ − ‖s + q‖| ≤ ‖r‖ + ‖q‖, and
each of the two is within the limit, the unit of `Finding.excess`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from conformance.checks.trace import Trace, require_same_inputs
from conformance.goldens.custom_golden import PREFIX
from conformance.judge.evidence import Verdict
from conformance.judge.judge import Judge
from conformance.judge.judged_elements import judged_elements
from conformance.judge.select_arithmetic import select_arithmetic
from conformance.model.activations import placed, table
from conformance.model.checkpoint import Checkpoint, rounded_weights
from conformance.oracle import Network
from conformance.report.coverage_sentences import number
from conformance.report.document import Document, Row, Span
from conformance.report.drawings import Axis, Points, axis_of, sigma
from conformance.report.finding import Finding, where
from conformance.report.findings import filter_limit, findings, is_same_mistake, mistakes
from conformance.results.case import Case
from conformance.results.records import ActivationRecord
from conformance.results.result import Result
from conformance.results.to_records import activation_records

Records = Sequence[ActivationRecord]


@dataclass(frozen=True)
class Difference:
    """The difference between two candidates, A and B, at one activation on one batch.

    Attributes:
        only: `A` or `B` if only that candidate exposes the activation.
        largest, index, values: largest |A − B| over the judged elements, its index, and A and B there; of none if `only`.
        local: the RMS of either candidate's local error in sigma; None if it does not expose the activation, or it is exact.
        limit: the largest local RMS of a correct candidate; None if there is none.
        begins: whether one of the candidates fails here by a mistake that the other has not.
    """

    batch: str
    activation: str
    only: str = ""
    largest: float = 0.0
    index: tuple[int, ...] = ()
    values: tuple[float, float] | None = None
    local: tuple[float | None, float | None] = (None, None)
    limit: float | None = None
    begins: bool = False


def judged(trace: Trace, checkpoint: Checkpoint) -> list[ActivationRecord]:
    """Return a record for each activation and batch of a trace, judged as in a run."""
    weights, verdicts = rounded_weights(checkpoint, trace.dtype), list[Verdict]()
    for name, batch in trace.batches.items():
        network = Network(checkpoint.architecture, weights, batch.held_in(trace.dtype))
        judge = Judge(network, trace.dtype, trace.device, len(trace.batches), recorded=True)
        # a trace holds the candidate's values in float64, which is exact
        values = ((n, torch.tensor(v).to(getattr(torch, trace.dtype))) for n, v in trace.activations[name].items())
        label = name if len(trace.batches) > 1 else ""
        verdicts += [replace(v, batch=label) for v in select_arithmetic(judge.judge(values))]
    case = Case(trace.name, trace.golden, trace.device, trace.dtype)
    return activation_records(Result(case, "pass", "", 0, True, True, 0.0, tuple(verdicts)))


def compare(traces: tuple[Trace, Trace], records: tuple[Records, Records]) -> Iterator[Difference]:
    """Yield the difference at every activation that either trace exposes, batch by batch, in the order of computation.

    `records` are those of `judged` for each trace.

    Raises:
        UsageError: the traces did not run on the same inputs.
    """
    a, b = traces
    require_same_inputs(a, b)
    origins = (*_origins(*records), *_origins(*reversed(records)))
    of_side = [{(r.batch, r.activation): r for r in side} for side in records]
    for name, batch in a.batches.items():
        label = name if len(a.batches) > 1 else ""
        for activation, row in Network(a.architecture, {}, batch).table.items():
            x, y = (trace.activations[name].get(activation) for trace in traces)
            sides = [side.get((label, activation)) for side in of_side]
            local = [r.local.rms if r and r.local else None for r in sides]
            limit = next((r.limits["rms"] for r in sides if r and r.limits and not row.exact), None)
            begins = any(r is not None and (label, activation) in origins for r in sides)
            difference = Difference(name, activation, "", local=(local[0], local[1]), limit=limit, begins=begins)
            if x is None or y is None:
                if x is not None or y is not None:
                    yield replace(difference, only="A" if y is None else "B")
                continue
            is_judged = judged_elements(row, batch, x.shape)
            gap = np.where(is_judged, x - y, 0.0)
            index = tuple(int(i) for i in np.unravel_index(int(np.abs(gap).argmax()), gap.shape))
            if is_judged.any():
                values = (float(x[index]), float(y[index]))
                yield replace(difference, largest=float(np.abs(gap).max()), index=index, values=values)


def _origins(records: Records, others: Records) -> set[tuple[str, str]]:
    """Return the batches and activations that fail in `records` by a mistake that `others` have not."""
    theirs, limit = findings(others), filter_limit((*records, *others))

    def is_shared(f: Finding) -> bool:
        alike = (o for o in theirs if f.steps == o.steps and is_same_mistake(f, o, limit))
        return any(f.fault or f.excess == o.excess or abs((f.excess or 0.0) - (o.excess or 0.0)) <= 2.0 for o in alike)

    shared = {name for f in findings(records) if is_shared(f) for name in f.activations}
    refused = {(r.activation, r.reason) for r in others if r.outcome == "fail" and r.reason}
    failed = [r for r in records if r.outcome == "fail" and (r.activation, r.reason) not in refused]
    return {(r.batch, r.activation) for r in failed if r.activation not in shared}


def document(differences: Sequence[Difference], traces: tuple[Trace, Trace], records: tuple[Records, Records]) -> Document:
    """Return the document: the steps at which the difference begins, the mistakes of each side, then a row for each activation.

    `differences` are those of `compare`, which are the data for programs.
    """
    first, layers = traces[0], traces[0].architecture.num_hidden_layers
    axis = axis_of(value for d in differences for value in (*d.local, d.limit))
    by_name = {name: of for name in table(first.architecture) if (of := [d for d in differences if d.activation == name])}
    begins = where(list(dict.fromkeys(d.activation for d in differences if d.begins)), layers)
    fails = any(r.outcome == "fail" for side in records for r in side)
    rows: list[Row] = []
    for group, of_group in groupby(by_name, lambda name: placed(name)[0]):
        rows += [(group,), *(_row(by_name[name], axis) for name in of_group)]
    names = [t.name for t in traces]
    names = names if names[0] != names[1] else [f"{name} ({letter})" for name, letter in zip(names, "AB", strict=True)]
    view = {
        "names": names,
        "network": Path(first.golden).name if first.golden.startswith(PREFIX) else first.golden,
        "both": len({d.activation for d in differences if not d.only}),
        "begins": begins,
        "same": "both have the same mistakes" if fails else "no difference beyond rounding",
        "sides": [_side(letter, t, side, layers) for letter, t, side in zip("AB", traces, records, strict=True)],
        "several": len({d.batch for d in differences}) > 1,
        "rows": rows,
        "plot": f"local rms of A ○ and B ●, {axis.reach}",
    }
    title = f"{' and '.join(names)}, activation by activation"
    return Document("difference", view, title, "bad" if begins else "good", list(map(asdict, differences)))


def _side(letter: str, trace: Trace, records: Records, layers: int) -> tuple[str, Span, int, list[list[str]]]:
    """Return of a trace its name and setting, its verdict, the number of activations that it exposes, and its mistakes in words."""
    every = [finding.lines for finding in mistakes(records)]
    failed = where(list(dict.fromkeys(r.activation for r in records if r.outcome == "fail")), layers)
    wrong = number(len(every), "mistake") if every else f"fails at {failed}" if failed else ""
    verdict = Span(wrong or "no error when judged alone", "bad" if wrong else "good")
    exposed = len({name for values in trace.activations.values() for name in values})
    return f"{letter}: {trace.name}, {trace.device}, {trace.dtype}", verdict, exposed, every


def _row(of_batches: Sequence[Difference], axis: Axis) -> Row:
    """Return the row of an activation, with the numbers of the batch where a difference begins, or else is largest."""
    d = max(of_batches, key=lambda d: (d.begins, max(v or 0.0 for v in d.local), d.largest))
    batch = f" [{d.batch}]" if len(of_batches) > 1 else ""
    name = Span(f"{placed(d.activation)[1]}{batch}", "bad" if d.begins else "quiet" if d.only else "")
    count, only = sum(other.begins for other in of_batches), f"only {d.only}" if d.only else ""
    mark = f"begins in {count} of {len(of_batches)}" if count and len(of_batches) > 1 else "begins here" if count else ""
    points = Points(axis.at(d.local[0]), axis.at(d.local[1]), axis.at(d.limit))
    local = [sigma(v, "exact" if d.limit is None and not d.begins else "-") for v in d.local]
    there = (f"{d.largest:.3g}", str(list(d.index) or "-"), *(f"{value:.5g}" for value in d.values)) if d.values else ["-"] * 4
    return name, points, "; ".join(filter(None, (mark, only))), *local, sigma(d.limit), *there
