"""`bert-conformance explain`: every name that a report may print has an entry, and every entry belongs to a name."""

import json

import pytest

from conformance.checks.catalogue import CHECKS
from conformance.cli import main
from conformance.diagnosis.inputs import MISTAKES
from conformance.errors import UnknownNameError
from conformance.glossary.index import GROUPS, entries, summaries
from conformance.glossary.known_faults import known_faults
from conformance.glossary.terms import TERMS
from conformance.goldens.recipes import RECIPES
from conformance.model.activations import table
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import FORMATS
from conformance.results.outcomes import ORDER

NAMES = {
    "outcome": ORDER,
    "term": tuple(TERMS),
    "check": tuple(CHECKS),
    "golden": tuple(RECIPES),
    "candidate": ("cmd", "trace"),
    "activation": tuple(table(RECIPES["tiny"].checkpoint().architecture)),
    "arithmetic": tuple(hypothesis.arithmetic.name for dtype in FORMATS for hypothesis in hypotheses(dtype)),
    "fault": tuple(known_faults()),
    "input mistake": tuple(mistake.name for mistake in MISTAKES),
}


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "fault"])
def test_every_name_of_a_group_has_an_entry_of_that_group(group: str) -> None:
    for name in NAMES[group]:
        (entry,) = entries(name)
        assert entry.group == group
        assert entry.summary
        assert entry.sections


def test_every_fault_has_an_equation_a_cause_or_source_and_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    # It is computed from a golden at each call, which is slow.
    monkeypatch.setattr("conformance.glossary.detectability.detectability", lambda fault: None)
    for name in NAMES["fault"]:
        (entry,) = entries(name)
        sections = dict(entry.sections)
        assert sections["acts at"], name
        assert sections["correct equation"], name
        assert sections["how to repair it"], name
        assert sections["source"], name


def test_a_fault_is_described_with_its_detectability_and_similar_faults() -> None:
    (entry,) = entries("norm-variance")
    sections = dict(entry.sections)
    assert sections["faulty equation"] == ("σ² = Σ (x − μ)² / (n − 1)",)
    assert "encoder.layer.N.output.LayerNorm  (batch × position × hidden_size)" in sections["acts at"]
    assert any(line.startswith("float32: ") for line in sections["how it is recognised"])
    assert any(line.startswith("epsilon: ") for line in sections["easily confused with"])


def test_a_test_id_an_activation_of_a_layer_and_a_golden_are_found_as_reports_write_them() -> None:
    assert entries("test_conformance[padding-length-making-bert-tiny-cpu-float32]")[0].name == "padding-length"
    assert entries("encoder.layer.11.attention.self.probs")[0].name == "encoder.layer.N.attention.self.probs"
    assert entries("golden:tiny")[0].group == "golden"
    assert {e.name for e in entries("attention.output.LayerNorm")} == {"encoder.layer.N.attention.output.LayerNorm"}


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match="norm-variance"):
        entries("norm-varience")


def test_the_command_prints_each_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "fail", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["group"] == "outcome"
    assert main(["explain", "fail", "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("### fail: outcome")
    assert main(["explain"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name}" in listed for names in summaries().values() for name in names)


def test_an_unknown_name_ends_with_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "no-such-name"]) == 2
    assert "no-such-name" in capsys.readouterr().err


@pytest.mark.parametrize(("written", "name"), [("σ", "sigma"), ("Z", "z"), ("global rms", "global rms"), ("max", "max")])
def test_a_term_is_found_as_reports_write_it(written: str, name: str) -> None:
    (entry,) = entries(written)
    assert (entry.group, entry.name) == ("term", name)
