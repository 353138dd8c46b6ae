"""`diff` of two runs: what is reported as worse, better, new, gone or changed, what is not reported, and in which formats."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from conformance.numerics.thresholds import max_threshold, projection_threshold, rms_threshold
from conformance.report.changes.changes import CaseChange, Changes, changes
from conformance.report.changes.changes_document import document, rows
from conformance.report.changes.changes_words import headline, mistakes
from conformance.report.changes.scale import scale_changed
from conformance.report.html.page import page
from conformance.report.terminal import wrapped
from conformance.results.case import Case
from conformance.results.merge import merged
from conformance.results.outcomes import ORDER
from conformance.results.records import ActivationRecord, ErrorRecord, FaultRecord, GoldenRecord, Note, Results
from conformance.tests.sample_records import activation, checked, run

ME = Case("mine", "tiny")
NORM = "encoder.layer.{}.attention.output.LayerNorm"
LIMIT = 1.62  # RMS limit of `activation`.


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
    return "\n".join(line.plain for line in wrapped(document(found), width))


HIDDEN = _norm(0.5, outcome="not_observed", local=None, global_error=None)


@pytest.mark.parametrize(
    ("before", "after", "kind", "code"),
    [
        (_norm(0.5), _norm(9.0), "worse", 1),
        (_norm(9.0), _norm(0.5), "better", 0),
        (_norm(0.5), HIDDEN, "gone", 1),
        (HIDDEN, _norm(0.5), "new", 0),
        (_norm(0.5), _norm(0.5 * LIMIT * 1.01), "changed", 0),
        (_norm(0.5 * LIMIT * 1.01), _norm(0.5), "changed", 0),
        (_norm(0.5), _norm(0.5 * LIMIT * 0.99), None, 0),
        (HIDDEN, HIDDEN, None, 0),
    ],
)
def test_each_activation_has_one_kind_of_change_and_only_worse_and_gone_fail(
    before: ActivationRecord, after: ActivationRecord, kind: str | None, code: int
) -> None:
    found = changes(_results(before), _results(after))
    assert [c.kind for c in _only(found).activations] == ([kind] if kind else [])
    assert found.exit_code == code


def test_changes_within_noise_are_counted_and_unchanged_activations_are_not() -> None:
    same, moves, fails = _norm(0.5), _norm(0.5, 1), _norm(0.5, 2)
    found = changes(_results(same, moves, fails), _results(same, _norm(0.6, 1), _norm(9.0, 2)))
    assert (_only(found).within_noise, _only(found).compared) == (1, 3)
    assert headline(found) == "worse: 1 check and 1 activation worse, 1 mistake appeared"
    assert "1 of 3 activations changed by no more than noise, 1 unchanged" in _plain(found)
    assert headline(changes(_results(same), _results(same))) == "no verdict changed"


@pytest.mark.parametrize("worse", [o for o in ORDER[:-1] if o != "skip"])
def test_every_outcome_is_worse_than_a_pass_and_a_later_pass_is_better(worse: str) -> None:
    there, back = (
        changes(_results(outcome="pass"), _results(outcome=worse)),
        changes(_results(outcome=worse), _results(outcome="pass")),
    )
    assert (_only(there).kind, there.exit_code) == ("worse", 1)
    assert (_only(back).kind, back.exit_code) == ("better", 0)


@pytest.mark.parametrize(("judged", "back"), [("pass", "new"), ("fail", "worse"), ("crash", "worse")])
def test_activations_of_a_check_that_is_now_skipped_are_reported_as_gone(judged: str, back: str) -> None:
    said, skipped = _results(outcome=judged), _results(outcome="skip")
    assert (_only(changes(said, skipped)).kind, changes(said, skipped).exit_code) == ("gone", 1)
    assert (_only(changes(skipped, said)).kind, changes(skipped, said).exit_code) == (back, int(back == "worse"))


def test_a_failure_that_grows_is_worse_and_one_that_shrinks_is_better_also_without_a_named_mistake() -> None:
    small, large = _results(_norm(2.0, outcome="fail")), _results(_norm(2e8, outcome="fail"))
    assert (_only(changes(small, large)).kinds, changes(small, large).exit_code) == ({"worse"}, 1)
    assert (_only(changes(large, small)).kinds, changes(large, small).exit_code) == ({"better"}, 0)
    alike = changes(small, _results(_norm(2.1, outcome="fail")))
    assert (_only(alike).kinds, alike.within_noise, alike.exit_code) == (frozenset(), 0, 0)
    exact = (_norm(0.0, outcome="fail", local=ErrorRecord(None, None, m, (0,)), limits={}) for m in (1e-7, 1e-3))
    small, large = (_results(rendered) for rendered in exact)
    assert (changes(small, large).exit_code, changes(large, small).exit_code) == (1, 0)


def test_a_check_that_is_gone_fails_and_one_that_is_new_does_not_unless_it_fails() -> None:
    first, second = (Case("mine", "tiny", check=name) for name in ("values", "padding-length"))
    one, both, failing = (merged([run(checked(first), *more)]) for more in ((), (checked(second),), (checked(second, "fail"),)))
    assert [changes(both, one).exit_code, changes(one, both).exit_code] == [1, 0]
    assert [c.kind for c in changes(both, one).cases] == ["gone", None]
    assert (changes(one, failing).exit_code, headline(changes(one, failing)).partition(":")[0]) == (1, "worse")


def test_runs_that_cannot_be_compared_are_not_a_success() -> None:
    whole = _results(_norm(0.5))
    assert changes(whole, replace(whole, cases=())).exit_code == 1
    assert changes(whole, replace(whole, notes=(Note("missing", "shard 2/2"),))).exit_code == 1
    assert changes(whole, whole).exit_code == 0
    assert any("no header" in note for note in changes(replace(whole, headers=()), whole).notes)


def _limits(numbers: int, rows: int, alpha: float) -> dict[str, float]:
    return {"rms": rms_threshold(rows, alpha), "max": max_threshold(numbers, alpha), "filter": projection_threshold(alpha)}


def _of(rms: float, limits: dict[str, float]) -> ActivationRecord:
    return _norm(rms, outcome="pass", limits=limits, local=ErrorRecord(rms, rms, rms, (0,)))


@pytest.mark.parametrize("numbers", [1, 2, 3, 12, 2000])
def test_two_samples_of_the_same_scale_are_not_reported_as_changed(numbers: int) -> None:
    """Of few elements the smaller RMS is sometimes small by chance, and the limit on the larger one does not account for that."""
    draws = np.random.default_rng(7).standard_normal((2, 2000, numbers))
    limits = _limits(numbers, 1 if numbers < 4 else numbers // 4, 1e-4)
    pairs = [sorted(pair) for pair in zip(*np.sqrt((draws**2).mean(-1)), strict=True)]
    assert numbers > 3 or any(larger > limits["rms"] * smaller for smaller, larger in pairs)
    assert not any(scale_changed(_of(float(smaller), limits), _of(float(larger), limits)) for smaller, larger in pairs)


def test_a_doubled_scale_is_reported_for_any_number_of_elements() -> None:
    limits = _limits(2000, 500, 1e-8)
    pairs = ((0.4, 0.8), (0.8, 0.4), (1e-300, 0.8), (0.0, 0.8), (0.4, 0.4 * limits["rms"]))
    assert [scale_changed(_of(a, limits), _of(b, limits)) for a, b in pairs] == [True, True, True, False, False]


def test_a_mistake_is_new_only_at_places_where_it_was_not_found_before() -> None:
    found = _only(changes(_results(*_wrong(0)), _results(*_wrong(0, 2))))
    assert [text[0] for text in mistakes(found)] == [
        "new mistake: layer 2, attention.output.LayerNorm: epsilon is 1e-05, the checkpoint says 1e-12"
    ]
    found = _only(changes(_results(*_wrong(0, 1, 2)), _results(*_wrong(1, 2))))
    assert (found.appeared, [f.steps for f in found.vanished]) == ((), [(NORM.format(0),)])


def test_an_estimate_within_its_error_is_the_same_mistake_and_another_value_is_a_new_one() -> None:
    before = _results(*_wrong(0))
    assert not _only(changes(before, _results(*_wrong(0, value=1.0003e-5)))).kinds
    found = changes(before, _results(*_wrong(0, value=2e-5)))
    assert (len(_only(found).appeared), len(_only(found).vanished)) == (1, 1)
    assert found.exit_code == 1  # It fails as before, through another mistake.


def test_a_golden_with_another_digest_is_not_compared_and_one_from_another_folder_is() -> None:
    golden = GoldenRecord(1, "0" * 64, "1" * 64, "generated")
    for other, compared in ((msgspec.structs.replace(golden, weights_digest="2" * 64), 0), (golden, 1)):
        found = changes(_results(_norm(0.5)), _results(_norm(9.0), goldens={"tiny": other}))
        assert (len(found.cases), found.exit_code) == (compared, 1)
        assert any("golden tiny is another" in note for note in found.notes) == (not compared)
        assert headline(found).startswith("worse" if compared else "nothing was compared")


def test_two_implementations_are_compared_where_each_run_has_only_one() -> None:
    other = replace(ME, implementation="yours")
    before, after = _results(_norm(0.5)), _results(activation(other, NORM.format(0), 9.0), case=other)
    found = changes(before, after)
    assert "mine was compared with yours, the only implementation of either run" in found.notes
    assert "mine → yours on tiny, cpu, float32: pass → fail" in _plain(found)
    third = merged([run(checked(other), checked(Case("hers", "tiny")))])
    assert {c.kind for c in changes(before, third).cases} == {"new", "gone"}


def test_possible_causes_of_a_change_and_missing_cases_are_reported() -> None:
    cut = merged([run(checked(ME), finished=False, torch="2.14.0", threads=8, gpu="H100")])
    found = changes(_results(), cut, ("old.jsonl", "new.jsonl"))
    rendered = _plain(found)
    assert "possible causes: torch 2.13.0 → 2.14.0; gpu none → H100; threads 1 → 8" in rendered
    assert "new.jsonl: missing: the end of" in rendered
    assert not changes(_results(), _results()).environment


def test_an_activation_on_several_batches_is_one_row_and_json_has_every_batch() -> None:
    names = [f"length-{n}" for n in range(30)]
    sides = ([_norm(rms + n / 100, batch=name) for n, name in enumerate(names)] for rms in (0.5, 9.0))
    found = changes(*(_results(*side) for side in sides))
    assert _plain(found).count("pass → fail") == 2  # The rows of the check and of the activation.
    assert "[length-29]" in _plain(found)
    worse = [row for row in rows(found) if row["change"] == "worse" and row.get("activation")]
    assert [row["batch"] for row in worse] == names
    assert worse[0]["local_after"] == {"rms": 9.0, "max": 36.0, "limit": LIMIT}
    assert all({"change", "what", "before", "after"} <= row.keys() for row in rows(found))


def test_zero_and_very_large_errors_are_on_the_page() -> None:
    html = page(document(changes(_results(_norm(0.0)), _results(_norm(1.7e308, local=ErrorRecord(1.7e308, 1.7e308, 1.0, (0, 0)))))))
    assert '<circle cx="0.0%"/>' in html
    assert '<circle class="last" cx="99.' in html
    assert not {"nan%", "inf%"} & set(html.split('"'))


def test_a_failure_that_is_now_declared_as_known_is_neither_better_nor_gone() -> None:
    known = [msgspec.structs.replace(a, outcome="xfail") if a.outcome == "fail" else a for a in _wrong(1)]
    failing, declared = _results(*_wrong(1)), _results(*known, outcome="xfail")
    found = changes(failing, declared)
    assert _only(found).kinds == {"changed"}
    assert found.exit_code == 0
    assert headline(found).startswith(
        "1 failing check now declared as known, nothing better or worse: 1 check and 1 activation changed"
    )
    assert "now declared as a known failure; no error changed by more than noise" in _plain(found)
    assert mistakes(_only(found)) == []
    assert mistakes(_only(changes(declared, failing))) == []
    smaller = [msgspec.structs.replace(a, outcome="xfail") for a in [_norm(2.0, 1, (_epsilon(1),))]]
    assert _only(changes(failing, _results(*known[:1], *smaller, *known[2:], outcome="xfail"))).kinds == {"changed", "better"}
    (gone,) = mistakes(_only(changes(declared, _results(*_wrong()))))
    assert gone[0].startswith("mistake gone: layer 1, attention.output.LayerNorm: epsilon is 1e-05")
