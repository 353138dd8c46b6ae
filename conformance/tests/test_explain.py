"""`bert-conformance explain`: every name that a report may print has an entry, and every entry belongs to a name."""

import json
import subprocess
import sys

import pytest

from conformance.checks.catalogue import CHECKS
from conformance.diagnosis.inputs import MISTAKES
from conformance.errors import UnknownNameError
from conformance.glossary.faults import faults_by_name
from conformance.glossary.index import entries, summaries
from conformance.glossary.terms import ALIASES, TERMS
from conformance.goldens.shipped_goldens import RECIPES
from conformance.model.activations import table
from conformance.results.outcomes import ORDER
from conformance.tests.commands import Command

NAMES = {
    "outcome": ORDER,
    "term": tuple(TERMS),
    "check": tuple(CHECKS),
    "golden": tuple(RECIPES),
    "candidate": ("cmd", "trace"),
    "activation": tuple(table(RECIPES["tiny"].checkpoint().architecture)),
    "mistake": tuple(faults_by_name()),
    "input mistake": tuple(mistake.name for mistake in MISTAKES),
}


def test_every_name_has_an_entry_of_its_group() -> None:
    assert list(NAMES) == list(summaries())
    for group, name in ((group, name) for group, names in NAMES.items() if group != "mistake" for name in names):
        (entry,) = entries(name)
        assert (entry.group, bool(entry.summary), bool(entry.sections)) == (group, True, True), name


def test_every_fault_has_an_equation_a_source_and_a_repair_with_the_cause_first() -> None:
    for name in NAMES["mistake"]:
        (entry,) = entries(name)
        assert all(dict(entry.sections)[title] for title in ("acts at", "correct equation", "how to repair it", "source")), name
        titles = [title for title, _ in entry.sections if title != "usual cause"]
        assert titles[0] == "how to repair it"
        assert titles.index("source") < titles.index("correct equation") < titles.index("acts at")
        assert "usual cause" not in dict(entry.sections) or entry.sections[0][0] == "usual cause"
    assert dict(entries("pooler-second-token")[0].sections)["source"][0].startswith("no report of it is known: constructed")


@pytest.mark.parametrize(
    ("written", "group", "name"),
    [
        ("test_conformance[padding-length-making-bert-tiny-cpu-float32]", "check", "padding-length"),
        ("encoder.layer.11.attention.self.probs", "activation", "encoder.layer.N.attention.self.probs"),
        ("last_hidden_state", "activation", "encoder.layer.N.output.LayerNorm"),
        ("attention.output.LayerNorm", "activation", "encoder.layer.N.attention.output.LayerNorm"),
        ("golden:tiny", "golden", "tiny"),
        ("σ", "term", "sigma"),
        ("Z", "term", "z"),
        ("global rms", "term", "global rms"),
        ("max", "term", "max"),
    ],
)
def test_a_name_is_found_as_reports_write_it(written: str, group: str, name: str) -> None:
    assert {(entry.group, entry.name) for entry in entries(written)} == {(group, name)}


def test_the_command_prints_each_format(command: Command) -> None:
    assert json.loads(command("explain", "fail", "--format", "json").out)[0]["group"] == "outcome"
    assert command("explain", "fail", "--format", "markdown").out.startswith("## fail: outcome")
    listed = command("explain").out
    assert all(f"  {name}" in listed for names in summaries().values() for name in names)
    for check_name in ("optimizer-step", "schedule", "loss-curve"):
        assert "does not call `model.train()`" in command("explain", check_name).words


def test_each_alias_stands_for_a_term_and_hides_no_other_name() -> None:
    assert set(ALIASES.values()) <= set(TERMS)
    others = {name for group, meanings in summaries().items() if group != "term" for name in meanings}
    assert not others & {*ALIASES, *TERMS}


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ("temperature", "did you mean softmax-temperature"),
        ("norm-varience", "did you mean norm-variance"),
        ("globel rms", "did you mean global rms"),
        ("sdpa", "`bert-conformance explain` lists every name"),
    ],
)
def test_an_unknown_name_is_answered_with_near_names(written: str, answer: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        entries(written)
    assert str(caught.value).partition("; ")[2].startswith(answer)


def test_texts_do_not_depend_on_the_docstrings_that_python_keeps(command: Command) -> None:
    names = ["trace", "encoder.layer.N.output.LayerNorm", "padding-length"]
    code = f"import sys; from conformance.cli import main; sys.exit(main(['explain', *{names}, '--format', 'json']))"
    without = subprocess.run([sys.executable, "-OO", "-c", code], stdout=subprocess.PIPE, check=True).stdout
    assert json.loads(without) == (found := json.loads(command("explain", *names, "--format", "json").out))
    assert all(entry["sections"] for entry in found)
