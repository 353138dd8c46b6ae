"""Third-party BERTs with their own names and layouts are mapped and judged without a line of adaptor code written by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from conformance import CandidateError, RegistrationError, UsageError, check, load_golden
from conformance.candidates.layouts import expanded, is_layered
from conformance.candidates.registry import as_implementation
from conformance.checks.catalogue import CHECKS
from conformance.cli import main
from conformance.goldens.manifest import manifest
from conformance.mapping.implementation import implementation_of
from conformance.mapping.mapped import proposed
from conformance.mapping.source import adaptor, variable
from conformance.mapping.tensors import layer_patterns
from conformance.tests.third_party_models import STRANGERS, proposal, stranger

# Each model with a golden whose sizes it accepts: one always has an intermediate size of four times the width.
COMPLETE = {
    "layouts:AlternatingBert": "tiny",
    "annotated:AnnotatedBert": "tiny",
    "styles:SentenceEncoder": "tiny",
    "styles:pipeline": "tiny",
    "layouts:FlaxBert": "tiny",
    "styles:FusedBert": "deep",
    "styles:TiedBert": "deep",
    "layouts:JoinedBert": "tiny",
    "layouts:LensBert": "tiny",
    "layouts:TransposedLensBert": "tiny",
    "masked:AddedMaskBert": "tiny",
    "masked:BlockedBert": "tiny",
    "layouts:MegatronBert": "tiny",
    "packed:PackedBert": "tiny",
    "stacked:StackedBert": "tiny",
}
LAYER = "encoder.layer.{layer}"
# Numbers that occur in lists of modules, for a network of three layers.
LISTS = {"head": range(2), "turns": range(6), "after": (1, 2, 3), "short": (0, 1), "uneven": (0, 1, 3), "unequal": (0, 2)}


def _architecture(golden: str = "tiny") -> Any:
    return load_golden(golden).checkpoint.architecture


@pytest.mark.landing(name=[*COMPLETE][::3])
@pytest.mark.parametrize(("name", "golden"), COMPLETE.items())
def test_a_model_is_mapped_by_value_and_conforms(name: str, golden: str) -> None:
    mapped = proposal(name)
    assert mapped.open == mapped.builder.open
    assert {held.evidence for held in mapped.parameters} <= {"value", "shape"}
    result = check(implementation_of(mapped), golden, depth="screen")
    assert result.outcome == "pass", str(result)


@pytest.mark.landing(name=["UnscaledEncoder", "TanhBert"])
@pytest.mark.parametrize(
    ("name", "right", "golden", "fault"),
    [
        ("UnscaledEncoder", "styles:SentenceEncoder", "tiny", "scale-missing"),
        ("TanhBert", "annotated:AnnotatedBert", "tiny", "gelu-variant"),
        ("FirstNormBert", "annotated:AnnotatedBert", "tiny", "epsilon"),
    ],
)
def test_a_model_with_a_mistake_is_mapped_like_the_correct_one_and_the_mistake_is_named(
    name: str, right: str, golden: str, fault: str
) -> None:
    of_wrong, of_right = (
        [(held.tensor.name, held.layout, held.names) for held in proposal(model).parameters]
        for model in (f"mistaken:{name}", right)
    )
    assert of_wrong == of_right
    result = check(implementation_of(proposal(f"mistaken:{name}")), golden)
    assert result.outcome == "fail"
    assert fault in str(result)


def test_equal_parts_of_a_layer_in_one_list_are_numbered_by_multiples_and_other_lists_are_not() -> None:
    names = [f"{part}.{i}.weight" for part, numbers in LISTS.items() for i in numbers]
    # A head of three parts of which only the biases have equal shapes.
    others = {"unequal.1.weight": (2, 3), "head.2.weight": (2,), **{f"head.{i}.bias": (2,) for i in range(3)}}
    patterns = layer_patterns(dict.fromkeys(names, (2, 2)) | others, 3)
    counted = {"turns.{2*layer}.weight", "turns.{2*layer+1}.weight", "after.{layer+1}.weight"}
    assert set(filter(is_layered, patterns.values())) == counted
    for name, pattern in patterns.items():
        assert name in expanded(pattern, 3) if pattern in counted else name == pattern


@pytest.mark.parametrize(
    ("name", "theirs", "layout"),
    [
        ("LensBert", f"bert.{LAYER}.attention.self.query.weight", "permuted(per_head({}), axes=[0, 2, 1])"),
        ("TransposedLensBert", f"bert.{LAYER}.attention.self.query.weight", "per_head({})"),
        ("JoinedBert", f"bert.{LAYER}.attention.self.query.weight", "stacked({})"),
        ("LensBert", "bert.embeddings.word_embeddings.weight", "tied({})"),  # of its decoder, which has a table of its own
        ("JoinedBert", "bert.embeddings.word_embeddings.weight", "tied({})"),  # of its decoder, the table under a second name
    ],
)
def test_head_first_fused_and_tied_kernels_are_recognised_as_layouts(name: str, theirs: str, layout: str) -> None:
    assert layout in {held.layout for held in proposal(f"layouts:{name}").parameters if held.names[0] == theirs}


@pytest.mark.parametrize(("name", "part"), [("layouts:LensBert", "the head masked_lm"), ("packed:PackedBert", "a pooler")])
def test_a_network_that_lacks_a_part_of_the_module_is_skipped_and_is_an_error_at_registration(name: str, part: str) -> None:
    implementation, checkpoint = implementation_of(proposal(name)), load_golden("tiny").checkpoint
    whole, bare = checkpoint.architecture, checkpoint.architecture.with_(heads=(), pooler=False)
    assert implementation.supports(whole, "cpu", "float32") is None
    assert part in str(implementation.supports(bare, "cpu", "float32"))
    taking = replace(implementation, supported=lambda a, device, dtype: None)
    with pytest.raises(RegistrationError, match="the checkpoint has no"):
        taking.prepare(replace(checkpoint, architecture=bare), "cpu", "float32")


def test_a_parameter_missing_from_the_checkpoint_is_ignored_and_left_open_if_forward_reads_it() -> None:
    scaled = proposal("mistaken:ScaledLensBert")
    for mapped in (proposal("layouts:LensBert"), scaled):
        assert set(implementation_of(mapped).ignored) == {"layers.*.IGNORE", "logit_scale", "pooler.weight", "pooler.bias"}
    assert scaled.open == (
        "logit_scale: nothing of the checkpoint fits; ignored, with the values that `build` gives",
        "the module returns a tensor of (5, 11, 53) that is no activation of the network: it is not judged",
    )


# Settings that a mapped module cannot be given: networks with others are skipped.


@pytest.mark.landing(name="layouts:JoinedBert")
@pytest.mark.parametrize("name", ["layouts:JoinedBert", "packed:PackedBert"])
def test_a_correct_model_whose_constructor_takes_sizes_alone_passes_or_is_skipped_on_every_golden(name: str) -> None:
    results = {golden: check(implementation_of(proposal(name)), golden, depth="screen") for golden in manifest()}
    assert {result.outcome for result in results.values()} == {"pass", "skip"}
    assert results["tiny"].outcome == "pass"
    for golden, setting in {"tanh": "hidden_act", "odd-width": "hidden_act", "position-offset": "layer_norm_eps"}.items():
        assert results[golden].reason.startswith(f"it takes no {setting}, and is judged with ")


def test_another_activation_function_is_accepted_beside_that_of_bert_which_is_still_judged() -> None:
    mapped = proposal("mistaken:TanhBert")
    assert mapped.computes == "gelu_new"
    assert mapped.differs[0].startswith("it takes no hidden_act and computes gelu_new")
    implementation = implementation_of(mapped)
    for function in ("gelu", "gelu_new", "gelu_pytorch_tanh"):
        assert implementation.supports(_architecture().with_(hidden_act=function), "cpu", "float32") is None
    assert "hidden_act" in str(implementation.supports(_architecture().with_(hidden_act="relu"), "cpu", "float32"))


# Adaptors.


def test_no_check_fails_for_the_adaptor_of_a_correct_model_with_fixed_settings() -> None:
    names: dict[str, Any] = {}
    mapped = proposal("packed:PackedBert")
    assert mapped.fixed_rates
    exec(adaptor(mapped), names)
    implementation = names[variable(mapped)]
    assert list(implementation.parameters) == [held.tensor.name for held in mapped.parameters]
    quick = [c.name for c in CHECKS.values() if not c.searches]
    outcomes = {name: check(implementation, "tiny", check=name, depth="screen").outcome for name in quick}
    assert set(outcomes.values()) == {"pass", "skip"}
    assert (outcomes["values"], outcomes["training-mode"]) == ("pass", "skip")


def test_map_writes_an_adaptor_that_run_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "adaptor of a stranger.py"
    assert main(["map", f"{STRANGERS}.packed:PackedBert", "-o", str(file)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    matched = "trunk.layers.{layer}.self_attn.in_proj_weight"  # listed with -v only
    assert matched not in printed
    for words in (
        f"run '{file}:packed_bert' --golden tiny",
        "activations of a network of 3 layers match the oracle",
        'skipped if a.hidden_act != "gelu"',
        "in training mode",
    ):
        assert words in printed
    assert main(["map", f"{STRANGERS}.packed:PackedBert", "-v"]) == 0
    assert matched in capsys.readouterr().out
    command = ["run", f"{file}:packed_bert", "--golden", "tiny", "--depth", "screen", "--in-process"]
    assert main([*command, "-o", str(tmp_path / "out")]) == 0
    written = file.read_text()
    for name, answer in ((file, "already exists"), (file.with_suffix(".txt"), "does not end in .py")):
        assert main(["map", f"{STRANGERS}.packed:PackedBert", "-o", str(name)]) == 2
        assert answer in " ".join(capsys.readouterr().err.split())
    assert file.read_text() == written


def test_an_instance_is_mapped_with_its_checkpoint_directory_and_runs_on_it(tmp_path: Path) -> None:
    checkpoint, file = load_golden("tiny").checkpoint, tmp_path / "adaptor_of_an_instance.py"
    a = checkpoint.architecture
    (tmp_path / "config.json").write_text(json.dumps({**a.as_dict(), "architectures": ["BertForSequenceClassification"]}))
    save_file({n: torch.from_numpy(np.array(w)).float() for n, w in checkpoint.weights.items()}, tmp_path / "model.safetensors")
    sizes = (a.vocab_size, a.hidden_size, a.num_hidden_layers, a.num_attention_heads, a.intermediate_size)
    code = f"from {STRANGERS}.layouts import JoinedBert\n\nbert = JoinedBert{(*sizes, a.max_position_embeddings)}\n"
    (tmp_path / "an_instance.py").write_text(code)
    assert main(["map", f"{tmp_path / 'an_instance.py'}:bert", "--checkpoint", str(tmp_path), "-o", str(file)]) == 0
    command = ["run", f"{file}:bert_implementation", "--checkpoint", str(tmp_path), "--depth", "screen", "--in-process"]
    assert main([*command, "-o", str(tmp_path / "out")]) == 0
    with pytest.raises(UsageError, match="--checkpoint DIR"):
        proposed(nn.Linear(2, 2), "linear", "home")


def test_a_class_and_an_instance_are_accepted_as_candidates() -> None:
    a, factory = _architecture(), stranger("packed:PackedBert")
    sizes = (a.vocab_size, a.hidden_size, a.num_hidden_layers, a.num_attention_heads, a.intermediate_size)
    for given in (factory, factory(*sizes, a.max_position_embeddings)):
        assert check(as_implementation(given), "tiny", depth="screen").outcome == "pass"


# What cannot be mapped.


class Secretive(nn.Module):
    def __init__(self, zeta: int) -> None:
        super().__init__()


class Broken(nn.Module):
    def __init__(self, vocab: int) -> None:
        raise ZeroDivisionError("of the user's code")


def test_a_class_that_cannot_be_instantiated_is_an_error_of_its_registration_that_says_what_to_run() -> None:
    result = check(as_implementation(Secretive))
    assert result.outcome == "error"
    assert "What is zeta of Secretive" in result.reason
    assert f"return Secretive(...)`, and run `bert-conformance map {__name__}:build`" in result.reason
    assert "Traceback" not in result.reason
    with pytest.raises(CandidateError, match="its constructor raised ZeroDivisionError: of the user's code"):
        proposed(Broken, "Broken", __name__)


def _named(name: str) -> type[nn.Module]:
    """Return a correct model with a buffer of that name."""

    class Named(stranger("unusual:PlainBert")):  # type: ignore[misc]  # a class
        def make(self, *sizes: int) -> None:
            super().make(*sizes)
            self.register_buffer(name, torch.zeros(1))

    return Named


@pytest.mark.parametrize("name", ['x",]); print(1)#', "x\nprint(1)", "x\u202e", "x\\"])
def test_a_name_that_could_become_code_in_an_adaptor_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="expected printable characters without quotes and backslashes"):
        proposed(_named(name), "Named", "home")
