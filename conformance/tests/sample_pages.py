"""Results to be rendered: a run with every kind of outcome, whose names contain markup that would break an unescaped page."""

from dataclasses import replace
from functools import cache
from typing import Any

import msgspec

from conformance import Golden, check, load_golden
from conformance.checks.check import Plan
from conformance.checks.run_header import header_of
from conformance.checks.trace import record
from conformance.implementations.hugging_face import HuggingFace
from conformance.report.changes import changes
from conformance.report.difference import compare, judged
from conformance.report.difference import document as difference_document
from conformance.report.page import page
from conformance.report.trace_report import document as trace_document
from conformance.results.records import CaseRecords, Note, Results
from conformance.results.to_records import records_of
from conformance.tests.lawless import BROKEN
from conformance.tests.planted_mistakes import Planted, epsilon, tanh_gelu

HOSTILE = """<script>hacked()</script><img src=x onerror="hacked()">'"&amp;{{ 7*7 }}"""


class Raises:
    """A candidate whose error message is markup."""

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        raise ValueError(HOSTILE)


@cache
def sample() -> Results:
    """Return a run with a mistake that has two possible names, a crash, a failed search, a skip, passes, hostile names and a
    missing end."""
    found = {
        "two-mistakes": check(Planted(epsilon(0), tanh_gelu(1))),
        HOSTILE: check(Raises()),
        "attends-to-padding": check(BROKEN["padding-length"], check="padding-length", plan=Plan(examples=5)),
        "correct": check(HuggingFace("eager")),
        "without-a-device": check(HuggingFace("eager"), device="cuda:99"),
    }
    cases = tuple(renamed(records_of(result), name) for name, result in found.items())
    header = header_of("cpu", {"tiny": None}, Plan())
    return Results((header,), cases, None, (Note("missing", f"the end of {HOSTILE}"),))


def renamed(case: CaseRecords, name: str, **check: Any) -> CaseRecords:
    """Return the results under another candidate's name; `check` changes only the check's record."""
    activations = tuple(msgspec.structs.replace(a, implementation=name) for a in case.activations)
    return CaseRecords(msgspec.structs.replace(case.check, implementation=name, **check), activations)


def before() -> Results:
    """Return an earlier version of the sample: one mistake fewer, one candidate more, and another candidate that is missing from
    it."""
    now = {case.check.implementation: case for case in sample().cases}
    was = [
        renamed(records_of(check(Planted(epsilon(0)))), "two-mistakes"),
        renamed(now["correct"], HOSTILE),
        renamed(now["correct"], "gone"),
        now["attends-to-padding"],
    ]
    return Results(sample().headers, tuple(was), None)


def changes_shown() -> str:
    """Return the page of what changed between the two runs."""
    return page(changes(before(), sample(), (HOSTILE, "after")).document)


def trace_shown() -> str:
    """Return the page with the trace of an implementation with a hostile name."""
    return page(trace_document(replace(record(Planted(epsilon(0)), tiny(), "cpu", "float32"), name=HOSTILE)))


def difference_shown() -> str:
    """Return the page that compares two implementations."""
    a = replace(record(Planted(epsilon(0)), tiny(), "cpu", "float32"), name=HOSTILE)
    b = record(HuggingFace("sdpa"), tiny(), "cpu", "float32")
    records = (judged(a, tiny().checkpoint), judged(b, tiny().checkpoint))
    return page(difference_document(list(compare((a, b), records)), (a, b), records))


@cache
def tiny() -> Golden:
    """Return the golden `tiny`."""
    return load_golden("tiny")
