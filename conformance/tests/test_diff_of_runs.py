"""`diff` of two runs: what is reported as worse, gone, new, known or better, what is not reported, and in which formats."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from conformance.report.changes import CaseChange, Changes, changes
from conformance.report.terminal import wrapped
from conformance.results.case import Case
from conformance.results.merge import merged
from conformance.results.outcomes import ORDER
from conformance.results.records import ActivationRecord, FaultRecord, GoldenRecord, Note, Results
from conformance.tests.sample_records import activation, checked, run

ME = Case("mine", "tiny")
NORM = "encoder.layer.{}.attention.output.LayerNorm"


def _results(*rendered: ActivationRecord, outcome: str = "", case: Case = ME, **fields: Any) -> Results:
    """Return the results of a run of one check, which fails where one of its activations does."""
    failed = any(a.outcome == "fail" for a in rendered)
    judged = sum(a.outcome != "not_observed" for a in rendered)
    one = checked(case, outcome or ("fail" if failed else "pass"), rendered, judged=judged, activations=len(rendered))
    return merged([run(one, **fields)])


def _norm(rms: float, layer: int = 0, faults: tuple[FaultRecord, ...] = (), **fields: Any) -> ActivationRecord:
    return activation(ME, NORM.format(layer), rms, faults, **fields)


def _epsilon(layer: int, value: float = 1e-5, deviation: float = 1e-8) -> FaultRecord:
    return FaultRecord("epsilon", NORM.format(layer), 1.0, 681.0, "epsilon", value, deviation, 1e-12)


def _wrong(*layers: int, value: float = 1e-5) -> list[ActivationRecord]:
    """Return a network of three layers; the given layers have an epsilon of their own."""
    return [_norm(76.0 if n in layers else 0.5, n, (_epsilon(n, value),) if n in layers else ()) for n in range(3)]


def _only(found: Changes) -> CaseChange:
    (case,) = found.cases
    return case


def _plain(found: Changes, width: int = 160) -> str:
    return "\n".join(line.plain for line in wrapped(found.document, width))


HIDDEN = _norm(0.5, outcome="not_observed", local=None, global_error=None)


def _checks(*outcomes: str) -> Results:
    names = ("values", "padding-length")
    return merged([run(*(checked(Case("mine", "tiny", check=n), o) for n, o in zip(names, outcomes, strict=False)))])


RIGHT, WRONG = _results(_norm(0.5)), _results(_norm(9.0))
PASS, SKIP, ALONE = _results(outcome="pass"), _results(outcome="skip"), _checks("pass")

# Two runs, the kinds of the change from the first to the second with its exit code, and those of the change back.
CHANGES: dict[str, tuple[Results, Results, tuple[set[str], int], tuple[set[str], int]]] = {
    "an activation fails": (RIGHT, WRONG, ({"worse"}, 1), ({"better"}, 0)),
    "an activation is hidden": (RIGHT, _results(HIDDEN), ({"gone"}, 1), ({"new"}, 0)),
    "hidden in both": (_results(HIDDEN), _results(HIDDEN), (set(), 0), (set(), 0)),
    **{f"a {o}": (PASS, _results(outcome=o), ({"worse"}, 1), ({"better"}, 0)) for o in ORDER[:-1] if o != "skip"},
    "a pass is skipped": (PASS, SKIP, ({"gone"}, 1), ({"new"}, 0)),
    "a failure is skipped": (_results(outcome="fail"), SKIP, ({"gone"}, 1), ({"worse"}, 1)),
    "a crash is skipped": (_results(outcome="crash"), SKIP, ({"gone"}, 1), ({"worse"}, 1)),
    "a check is new": (ALONE, _checks("pass", "pass"), ({"new"}, 0), ({"gone"}, 1)),
    "a check is new and fails": (ALONE, _checks("pass", "fail"), ({"worse"}, 1), ({"gone"}, 1)),
    "an estimate moves within its error": (
        _results(*_wrong(0)), _results(*_wrong(0, value=1.0003e-5)), (set(), 0), (set(), 0),
    ),
    "no check is left": (RIGHT, replace(RIGHT, cases=()), ({"gone"}, 1), ({"new"}, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_has_its_kind_and_exit_code_in_both_directions(name: str) -> None:
    before, after, there, back = CHANGES[name]
    for found, (kinds, code) in ((changes(before, after), there), (changes(after, before), back)):
        assert (found.kinds, found.exit_code) == (kinds, code)


def test_an_incomplete_run_is_not_a_success() -> None:
    incomplete = changes(RIGHT, replace(RIGHT, notes=(Note("missing", "the end"),)))
    assert (incomplete.exit_code, changes(RIGHT, RIGHT).exit_code) == (1, 0)
    assert any("no header" in note for note in changes(replace(RIGHT, headers=()), RIGHT).notes)


def test_a_mistake_is_new_only_at_places_where_it_was_not_found_before() -> None:
    found = _only(changes(_results(*_wrong(0)), _results(*_wrong(0, 2))))
    assert [f.steps for f in found.appeared] == [(NORM.format(2),)]
    found = _only(changes(_results(*_wrong(0, 1, 2)), _results(*_wrong(1, 2))))
    assert (found.appeared, [f.steps for f in found.vanished]) == ((), [(NORM.format(0),)])


def test_another_value_of_an_estimate_is_another_mistake() -> None:
    found = changes(_results(*_wrong(0)), _results(*_wrong(0, value=2e-5)))
    assert (len(_only(found).appeared), len(_only(found).vanished), found.exit_code) == (1, 1, 1)


def test_a_golden_with_another_digest_is_not_compared_and_one_from_another_folder_is() -> None:
    golden = GoldenRecord(1, "0" * 64, "1" * 64, "generated")
    for other, compared in ((msgspec.structs.replace(golden, weights_digest="2" * 64), 0), (golden, 1)):
        found = changes(_results(_norm(0.5)), _results(_norm(9.0), goldens={"tiny": other}))
        assert (len(found.cases), found.exit_code) == (compared, 1)
        assert any("golden tiny is another" in note for note in found.notes) == (not compared)
        assert found.headline.startswith("worse" if compared else "nothing was compared")


def test_a_failure_that_is_now_declared_as_known_is_neither_better_nor_gone() -> None:
    known = [msgspec.structs.replace(a, outcome="xfail") if a.outcome == "fail" else a for a in _wrong(1)]
    failing, declared = _results(*_wrong(1)), _results(*known, outcome="xfail")
    found = changes(failing, declared)
    assert (found.kinds, found.exit_code) == ({"known"}, 0)
    assert found.headline == "nothing better or worse: 1 check and 1 activation known"
    assert not any((*case.appeared, *case.vanished) for case in (_only(found), _only(changes(declared, failing))))
    assert "mistake gone: layer 1, attention.output.LayerNorm: epsilon is 1e-05" in _plain(changes(declared, _results(*_wrong())))
