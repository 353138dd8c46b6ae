"""Results to be shown: a run with every kind of outcome in it, under names that would break out of a page if they could."""

from functools import cache
from typing import Any

import msgspec

from conformance import check
from conformance.checks.catalogue import CHECKS
from conformance.checks.check import run
from conformance.recording import header_of
from conformance.records import CaseRecords, Note, Results
from conformance.report.telling import records_of
from conformance.search.plan import Plan
from conformance.tests.lawless import BROKEN
from conformance.tests.planted import Planted, epsilon, tanh_gelu
from implementations.hugging_face import HuggingFace

HOSTILE = """<script>hacked()</script><img src=x onerror="hacked()">'"&amp;{{ 7*7 }}"""


class Raises:
    """A candidate whose error is markup."""

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        raise ValueError(HOSTILE)


@cache
def sample() -> Results:
    """A mistake with a name twice, one that crashes under a hostile name, a search that failed, a skip, passes; a shard missing."""
    found = {
        "two-mistakes": check(Planted(epsilon(0), tanh_gelu(1))),
        HOSTILE: check(Raises()),
        "attends-to-padding": run(
            CHECKS["padding-length"], BROKEN["padding-length"], "tiny", "cpu", "float32", plan=Plan(examples=5)
        ),
        "correct": check(HuggingFace("eager")),
        "without-a-device": check(HuggingFace("eager"), device="cuda:99"),
    }
    cases = tuple(renamed(records_of(result), name) for name, result in found.items())
    header = header_of("cpu", {"tiny": None}, Plan())
    return Results((header,), cases, None, (Note("missing", f"shard 2/3 {HOSTILE}"),))


def renamed(case: CaseRecords, name: str, **check: Any) -> CaseRecords:
    """The same of another candidate; `check` changes the check's record alone."""
    activations = tuple(msgspec.structs.replace(a, implementation=name) for a in case.activations)
    return CaseRecords(msgspec.structs.replace(case.check, implementation=name, **check), activations)
