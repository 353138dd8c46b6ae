"""`bert-conformance explain`: every name that a report may print has an entry, and every entry belongs to a name."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import conformance
from conformance import Checkpoint, check, load_golden
from conformance.candidates.registry import Runner
from conformance.checks.catalogue import CHECKS
from conformance.diagnosis.inputs import MISTAKES
from conformance.errors import UnknownNameError
from conformance.faults import BY_NAME
from conformance.glossary.faults import known_faults
from conformance.glossary.groups import OF_ACTIVATIONS
from conformance.glossary.index import entries, entries_of_words, summaries
from conformance.glossary.terms import ALIASES, TERMS
from conformance.goldens.shipped_goldens import RECIPES
from conformance.implementations.hugging_face import HuggingFace
from conformance.judge.detection_power import power
from conformance.model.activations import table
from conformance.report.run import LEGEND
from conformance.results.outcomes import ORDER, OUTCOME_TEXT
from conformance.tests.commands import Command

NAMES = {
    "outcome": ORDER,
    "term": tuple(TERMS),
    "check": tuple(CHECKS),
    "golden": tuple(RECIPES),
    "candidate": ("cmd", "trace"),
    "activation": tuple(table(RECIPES["tiny"].checkpoint().architecture)),
    "mistake": tuple(known_faults()),
    "input mistake": tuple(mistake.name for mistake in MISTAKES),
}


def test_texts_do_not_depend_on_the_docstrings_that_python_keeps(command: Command) -> None:
    names = ["trace", "encoder.layer.N.output.LayerNorm", "padding-length"]
    code = f"import sys; from conformance.cli import main; sys.exit(main(['explain', *{names}, '--format', 'json']))"
    without = subprocess.run([sys.executable, "-OO", "-c", code], stdout=subprocess.PIPE, check=True).stdout
    assert json.loads(without) == (found := json.loads(command("explain", *names, "--format", "json").out))
    assert all(entry["sections"] for entry in found)


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


def test_a_fault_is_described_with_its_equation_and_places() -> None:
    sections = dict(entries("norm-variance")[0].sections)
    assert sections["equation with the mistake"] == ("σ² = Σ (x − μ)² / (n − 1)",)
    assert "encoder.layer.N.output.LayerNorm  (batch × position × hidden_size)" in sections["acts at"]


def tanh_gelu(checkpoint: Checkpoint, device: str, dtype: str) -> Runner:
    """A BERT with the tanh form of GELU, whatever the config says."""
    other = Checkpoint(checkpoint.architecture.with_(hidden_act="gelu_new"), checkpoint.weights)
    return HuggingFace("eager").prepare(other, device, dtype)


def test_the_expected_z_of_an_entry_is_that_of_a_run_of_a_candidate_with_the_mistake() -> None:
    pytest.importorskip("transformers")
    (cell,) = power(load_golden("tiny"), "float32", only="gelu-variant", filtered=True)
    (finding,) = check(tanh_gelu, "tiny").findings
    assert finding.evidence.endswith(f"z = {cell.best:.3g}")


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


READ = """
judged, residual, separable, golden, checkpoint, conforms, exact, candidate, activation, declared, oracle, local, global, origin,
known failure, unexposed step, screen, depth, arithmetic, step, segment, batch, padding, exposed, coverage, mistake, fault, error,
not observed, expected z, estimate, matched filter, excluded, cannot be distinguished, parameters confirmed, numbers confirmed,
numbers checked, excludes, local error, global error, allowed, catalogue, noise, usual cause, median local error, ±,
unidentified error, false alarm, evidence, nats, dtype, bfloat16, check, law, worker, adaptor, registration, pooling, first origin
"""


def test_every_term_of_reports_and_of_the_readme_has_an_entry_with_a_definition() -> None:
    readme = (Path(conformance.__file__).parents[1] / "README.md").read_text("utf-8")
    defined = {term for found in re.findall(r"\*([a-z][a-z ,]*)\*:", readme) for term in found.split(", ")}
    assert {"origin", "amplitude", "z"} <= defined
    for written in (*re.split(r",\s", READ.strip()), *defined):
        entry = entries(written)[0]
        assert entry.group in ("term", "outcome"), written
        assert all(lines for _, lines in entry.sections), written


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


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("global rms", ["global rms"]),
        ("not exposed", ["unexposed step"]),
        ("global rms tiny padding-length", ["global rms", "tiny", "padding-length"]),
        ("layer 0", ["layer"]),
        ("positions 1 to 15", ["position"]),
        ("mean-with-padding", ["pooling-with-padding"]),
        ("1/√d", ["scale-missing"]),
    ],
)
def test_words_without_quotes_are_first_joined(words: str, names: list[str]) -> None:
    assert [entry.name for entry in entries_of_words(words.split())] == names


_LABELS = """
batch, row, position, head, query, key, feature, layer 0, every layer, ULP, significant bits, only copy, masked keys,
accumulated rounding, padded, unidentified, error without a name, 1/√d, replay, variation, rows, differs, smallest failing batch,
median local error, what rounding explains, supported, ±, padding
"""


def test_every_label_that_a_report_prints_is_explained() -> None:
    labels = {*LEGEND, *OUTCOME_TEXT, *(o.of_check for o in OUTCOME_TEXT.values()), *re.split(r",\s", _LABELS.strip())}
    labels |= {OUTCOME_TEXT[name].of_activation for name in OF_ACTIVATIONS}
    labels |= {quantity for f in BY_NAME.values() if f.parameter and (quantity := f.parameter.quantity)}
    for label in labels:
        assert all(entry.sections for entry in entries(label)), label
        assert [e.name for e in entries_of_words(label.split())] == [e.name for e in entries(label)], label
