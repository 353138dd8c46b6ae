"""BERTs that strangers wrote, with names and layouts of their own, from nothing to a verdict, no line written by hand."""

import os
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conformance import CandidateError, UsageError, check, load_golden
from conformance.candidates.registry import as_implementation
from conformance.cli import main
from conformance.mapping.call import calls
from conformance.mapping.mapped import implementation_of, proposed
from conformance.mapping.proposal import Proposal
from conformance.mapping.source import adaptor, variable

STRANGERS = "conformance.tests.strangers"
# Of each, a golden of sizes that it takes: one has four times the width inside whatever it is given.
COMPLETE = {
    "annotated:AnnotatedBert": "tiny",
    "fairseq:SentenceEncoder": "tiny",
    "flaxlike:FlaxLikeBert": "tiny",
    "fused:BERT": "deep",
    "fused:TiedBert": "deep",
    "megatron:LanguageModel": "tiny",
    "packed:PackedBert": "tiny",
    "stacked:StackedBert": "tiny",
}


def stranger(name: str) -> Any:
    module, _, factory = name.partition(":")
    return getattr(import_module(f"{STRANGERS}.{module}"), factory)


@cache
def proposal(name: str) -> Proposal:
    module, _, factory = name.partition(":")
    return proposed(stranger(name), factory, f"{STRANGERS}.{module}")


def evidence(found: Proposal) -> dict[str, str]:
    return {name: held.evidence for held in found.parameters for name in held.names}


@pytest.mark.parametrize(("name", "golden"), COMPLETE.items())
def test_it_is_mapped_by_value_and_conforms(name: str, golden: str) -> None:
    found = proposal(name)
    assert found.open == (() if name != "fairseq:SentenceEncoder" else found.builder.open)
    assert set(evidence(found).values()) <= {"value", "shape"}
    result = check(implementation_of(found), golden, depth="screen")
    assert result.outcome == "pass", str(result)


@pytest.mark.parametrize(
    ("name", "right", "golden", "fault"),
    [
        ("UnscaledEncoder", "fairseq:SentenceEncoder", "tiny", "scale-missing"),
        ("TanhBert", "annotated:AnnotatedBert", "tiny", "gelu-variant"),
        ("FirstNormBert", "annotated:AnnotatedBert", "tiny", "epsilon"),
        ("WidthScaledBert", "fused:BERT", "wide", "scale-missing"),
    ],
)
def test_one_with_a_mistake_is_mapped_as_the_right_one_is_and_the_mistake_is_named(
    name: str, right: str, golden: str, fault: str
) -> None:
    found = proposal(f"mistaken:{name}")
    assert [(h.tensor.name, h.layout, h.names) for h in found.parameters] == [
        (h.tensor.name, h.layout, h.names) for h in proposal(right).parameters
    ]
    result = check(implementation_of(found), golden)
    assert result.outcome == "fail"
    assert fault in str(result)


def test_one_whose_layers_take_turns_in_a_list_is_not_mapped_and_it_is_said_why() -> None:
    found = proposal("alternating:AlternatingBert")
    assert not found.is_complete
    assert found.open[0].startswith("layers.* has 6 parts for 3 layers, 2 each")
    assert any(sentence.startswith("no output was found") for sentence in found.open)


def test_a_formatter_changes_nothing_in_an_adaptor(tmp_path: Path) -> None:
    pytest.importorskip("ruff", reason="ruff is not installed")
    for name in COMPLETE:
        (tmp_path / f"{name.partition(':')[0]}.py").write_text(adaptor(proposal(name)), "utf-8")
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--check", "--no-cache", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_an_adaptor_defines_what_was_proposed() -> None:
    found, names = proposal("packed:PackedBert"), {}
    exec(adaptor(found), names)
    implementation = names[variable(found)]
    assert list(implementation.parameters) == [held.tensor.name for held in found.parameters]
    assert check(implementation, "tiny", depth="screen").outcome == "pass"


def test_a_class_and_an_instance_are_candidates_as_they_are() -> None:
    a = load_golden("tiny").checkpoint.architecture
    sizes = (a.vocab_size, a.hidden_size, a.num_hidden_layers, a.num_attention_heads, a.intermediate_size)
    factory = stranger("stacked:StackedBert")
    for given in (factory, factory(*sizes, a.max_position_embeddings)):
        assert check(as_implementation(given), "tiny", depth="screen").outcome == "pass"


def test_an_instance_without_its_checkpoint_is_refused() -> None:
    with pytest.raises(UsageError, match="--checkpoint DIR"):
        proposed(nn.Linear(2, 2), "linear", "home")


class Secretive(nn.Module):
    def __init__(self, zeta: int) -> None:
        super().__init__()


class Broken(nn.Module):
    def __init__(self, vocab: int) -> None:
        raise ZeroDivisionError("of the user's code")


def test_an_argument_that_says_nothing_is_named() -> None:
    with pytest.raises(UsageError, match="what is its argument zeta"):
        proposed(Secretive, "Secretive", __name__)


def test_a_class_that_cannot_be_built_is_an_error_of_its_registration() -> None:
    result = check(as_implementation(Secretive))
    assert result.outcome == "error"
    assert "Secretive: what is its argument zeta" in result.reason
    assert "Traceback" not in result.reason


class TypedReturn(nn.Module):
    def forward(self, tokens: torch.Tensor, return_type: str = "logits", token_type_ids: Any = None) -> None: ...


def test_an_argument_with_the_name_of_an_array_gets_it_before_one_with_a_part_of_it() -> None:
    assert [call.arguments for call in calls(TypedReturn())] == ["batch.input_ids, token_type_ids=batch.token_type_ids"]


def test_an_implementation_is_made_without_importing_pytest() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "from conformance.mapping.mapped import implementation_of, proposed\n"
        f"from {STRANGERS}.packed import PackedBert\n"
        f"print(implementation_of(proposed(PackedBert, 'PackedBert', '{STRANGERS}.packed')).name)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "packed-bert\n"


def test_what_the_users_code_raises_is_reported_as_such() -> None:
    with pytest.raises(CandidateError, match="its constructor raised ZeroDivisionError: of the user's code"):
        proposed(Broken, "Broken", __name__)


def test_map_writes_an_adaptor_that_run_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "adaptor_of_a_stranger.py"
    assert main(["map", f"{STRANGERS}.packed:PackedBert", "-o", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "trunk.layers.{layer}.self_attn.in_proj_weight" in shown
    assert f"run -i {file}:packed_bert" in " ".join(shown.split())
    command = ["run", "-i", f"{file}:packed_bert", "--golden", "tiny", "--depth", "screen", "--in-process"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert main(["map", f"{STRANGERS}.packed:PackedBert", "-o", str(file)]) == 2  # nothing is overwritten


def test_a_module_without_an_object_suggests_those_that_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-i", f"{STRANGERS}.fused"]) == 2
    assert f"{STRANGERS}.fused:BERT" in capsys.readouterr().err


@pytest.mark.parametrize("mapped", [[], ["--map", f"{STRANGERS}.stacked:StackedBert"]])
def test_a_new_package_passes_its_own_tests(mapped: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "my-bert"
    assert main(["new", str(folder), *mapped]) == 0
    paths = [str(folder / "src"), str(Path(__file__).parents[2])]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "values and tiny", str(folder / "tests")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "1 passed" in done.stdout
    assert main(["new", str(folder), *mapped]) == 2  # nothing is overwritten
