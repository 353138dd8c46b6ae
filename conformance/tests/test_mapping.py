"""Third-party BERTs with their own names and layouts are mapped and judged without a line of adaptor code written by hand."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from conformance import CandidateError, RegistrationError, UsageError, check, load_golden
from conformance.candidates.layouts import expanded, is_layered
from conformance.candidates.registry import as_implementation
from conformance.cli import main
from conformance.mapping.implementation import implementation_of
from conformance.mapping.mapped import proposed
from conformance.mapping.proposal import Proposal
from conformance.mapping.source import adaptor, variable
from conformance.mapping.tensors import layer_patterns
from conformance.tests.forked import run_python
from conformance.tests.third_party_models import STRANGERS, proposal, stranger

# Each model with a golden whose sizes it accepts: one always has an intermediate size of four times the width.
COMPLETE = {
    "alternating:AlternatingBert": "tiny",
    "annotated:AnnotatedBert": "tiny",
    "fairseq:SentenceEncoder": "tiny",
    "features:build": "tiny",
    "flaxlike:FlaxLikeBert": "tiny",
    "fused:BERT": "deep",
    "fused:TiedBert": "deep",
    "hooked:HookedBert": "tiny",
    "joined:JoinedBert": "tiny",
    "lens:LensBert": "tiny",
    "lens:TransposedLensBert": "tiny",
    "masked:AddedMaskBert": "tiny",
    "masked:BlockedBert": "tiny",
    "megatron:LanguageModel": "tiny",
    "packed:PackedBert": "tiny",
    "stacked:StackedBert": "tiny",
}
# Numbers that occur in lists of modules, for a network of three layers.
LISTS = {"head": range(2), "turns": range(6), "after": (1, 2, 3), "short": (0, 1), "uneven": (0, 1, 3), "unequal": (0, 2)}


def evidence(found: Proposal) -> dict[str, str]:
    return {name: held.evidence for held in found.parameters for name in held.names}


@pytest.mark.landing(name=[*COMPLETE][::3])
@pytest.mark.parametrize(("name", "golden"), COMPLETE.items())
def test_a_model_is_mapped_by_value_and_conforms(name: str, golden: str) -> None:
    found = proposal(name)
    assert found.open == found.builder.open
    assert set(evidence(found).values()) <= {"value", "shape"}
    result = check(implementation_of(found), golden, depth="screen")
    assert result.outcome == "pass", str(result)


@pytest.mark.landing(name=["UnscaledEncoder", "TanhBert"])
@pytest.mark.parametrize(
    ("name", "right", "golden", "fault"),
    [
        ("UnscaledEncoder", "fairseq:SentenceEncoder", "tiny", "scale-missing"),
        ("TanhBert", "annotated:AnnotatedBert", "tiny", "gelu-variant"),
        ("FirstNormBert", "annotated:AnnotatedBert", "tiny", "epsilon"),
        ("NormlessBert", "annotated:AnnotatedBert", "tiny", "norm-missing"),
        ("WidthScaledBert", "fused:BERT", "wide", "scale-missing"),
    ],
)
def test_a_model_with_a_mistake_is_mapped_like_the_correct_one_and_the_mistake_is_named(
    name: str, right: str, golden: str, fault: str
) -> None:
    found = proposal(f"mistaken:{name}")
    assert [(h.tensor.name, h.layout, h.names) for h in found.parameters] == [
        (h.tensor.name, h.layout, h.names) for h in proposal(right).parameters
    ]
    result = check(implementation_of(found), golden)
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


@pytest.mark.parametrize("name", ["lens:LensBert", "joined:JoinedBert"])
def test_a_decoder_with_its_own_table_or_under_a_second_name_is_tied(name: str) -> None:
    (decoder,) = [h for h in proposal(name).parameters if h.layout == "tied({})"]
    assert decoder.tensor.name in ("unembed.weight", "lm_decoder.weight")
    assert decoder.names == ("bert.embeddings.word_embeddings.weight",)


@pytest.mark.parametrize(("name", "part"), [("lens:LensBert", "the head masked_lm"), ("packed:PackedBert", "a pooler")])
def test_a_network_that_lacks_a_part_of_the_module_is_skipped_and_is_an_error_at_registration(name: str, part: str) -> None:
    implementation, checkpoint = implementation_of(proposal(name)), load_golden("tiny").checkpoint
    whole, bare = checkpoint.architecture, checkpoint.architecture.with_(heads=(), pooler=False)
    assert implementation.supports(whole, "cpu", "float32") is None
    assert part in str(implementation.supports(bare, "cpu", "float32"))
    taking = replace(implementation, supported=lambda a, device, dtype: None)
    with pytest.raises(RegistrationError, match="the checkpoint has no"):
        taking.prepare(replace(checkpoint, architecture=bare), "cpu", "float32")


def test_a_module_without_pooler_and_heads_is_judged_on_every_network_of_its_sizes() -> None:
    implementation = implementation_of(proposal("fused:BERT"))
    for golden in ("deep", "token-heads"):
        a = load_golden(golden).checkpoint.architecture
        bare = a.with_(heads=(), pooler=False, intermediate_size=4 * a.hidden_size)
        assert implementation.supports(bare, "cpu", "float32") is None


def test_a_parameter_missing_from_the_checkpoint_is_ignored_and_left_open_if_forward_reads_it() -> None:
    assert list(implementation_of(proposal("lens:LensBert")).ignored) == ["blocks.*.IGNORE", "logit_scale"]
    found = proposal("mistaken:ScaledLensBert")
    assert list(implementation_of(found).ignored) == ["blocks.*.IGNORE", "logit_scale"]
    assert found.open[0] == "logit_scale: nothing of the checkpoint fits; ignored, with the values that `build` gives"


def test_a_pooler_that_forward_does_not_call_is_ignored_and_required_of_no_network() -> None:
    implementation, a = implementation_of(proposal("hooked:HookedBert")), load_golden("tiny").checkpoint.architecture
    assert list(implementation.ignored) == ["pooler.W", "pooler.b"]
    assert implementation.supports(a.with_(heads=("masked_lm",), pooler=False), "cpu", "float32") is None


def test_identity_modules_for_hooks_show_the_activations_of_a_module_without_submodules() -> None:
    shown = {one.tap.path: one.names for one in proposal("hooked:HookedBert").activations}
    in_layer = {"hook_q": "self.query", "hook_pattern": "self.probs", "hook_z": "self.context", "hook_out": "output.dense"}
    for hook, end in in_layer.items():
        assert shown[f"blocks.{{layer}}.{hook}"] == (f"encoder.layer.{{layer}}.attention.{end}",)


def test_a_returned_tensor_that_is_no_activation_is_reported_as_not_judged() -> None:
    assert proposal("mistaken:ScaledLensBert").open[1:] == (
        "the module returns a tensor of (5, 11, 53) that is no activation of the network: it is not judged",
    )


def test_a_returned_tensor_as_wide_as_the_last_hidden_state_is_reported_as_one_on_which_run_fails() -> None:
    found = proposal("mistaken:DoubledBert")
    assert found.open == (
        "the module returns a tensor of (5, 11, 24) as wide as the last hidden state but with other values: `run` fails on it "
        "unless `call` returns outputs by name",
    )
    assert "the module returns another tensor" in check(implementation_of(found), "deep", depth="screen").reason


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("lens:LensBert", "permuted(per_head({}), axes=[0, 2, 1])"),
        ("lens:TransposedLensBert", "per_head({})"),
        ("joined:JoinedBert", "stacked({})"),
    ],
)
def test_head_first_and_fused_kernels_are_found_as_layouts(name: str, layout: str) -> None:
    (query,) = [h for h in proposal(name).parameters if h.names[0].endswith("self.query.weight")]
    assert query.layout == layout


def test_an_instance_is_mapped_with_its_checkpoint_directory_and_runs_on_it(tmp_path: Path) -> None:
    checkpoint, file = load_golden("tiny").checkpoint, tmp_path / "adaptor_of_an_instance.py"
    a = checkpoint.architecture
    (tmp_path / "config.json").write_text(json.dumps({**a.as_dict(), "architectures": ["BertForSequenceClassification"]}))
    stored = {n: torch.from_numpy(np.array(w)).float() for n, w in checkpoint.weights.items()}
    save_file(stored, tmp_path / "model.safetensors")
    names = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    )
    sizes = tuple(getattr(a, name) for name in names)
    (tmp_path / "an_instance.py").write_text(f"from {STRANGERS}.joined import JoinedBert\n\nbert = JoinedBert{sizes}\n")
    assert main(["map", f"{tmp_path / 'an_instance.py'}:bert", "--checkpoint", str(tmp_path), "-o", str(file)]) == 0
    command = ["run", "-i", f"{file}:bert_implementation", "--checkpoint", str(tmp_path), "--depth", "screen", "--in-process"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0


def test_a_formatter_does_not_change_an_adaptor(tmp_path: Path) -> None:
    pytest.importorskip("ruff", reason="ruff is not installed")
    for name in COMPLETE:
        (tmp_path / f"{name.partition(':')[0]}.py").write_text(adaptor(proposal(name)), "utf-8")
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--check", "--no-cache", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_an_adaptor_defines_the_proposal() -> None:
    found, names = proposal("packed:PackedBert"), {}
    exec(adaptor(found), names)
    implementation = names[variable(found)]
    assert list(implementation.parameters) == [held.tensor.name for held in found.parameters]
    assert check(implementation, "tiny", depth="screen").outcome == "pass"


def test_a_class_and_an_instance_are_accepted_as_candidates() -> None:
    a = load_golden("tiny").checkpoint.architecture
    sizes = (a.vocab_size, a.hidden_size, a.num_hidden_layers, a.num_attention_heads, a.intermediate_size)
    factory = stranger("packed:PackedBert")
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


def test_an_argument_of_unknown_meaning_is_named() -> None:
    with pytest.raises(UsageError, match="What is zeta of Secretive"):
        proposed(Secretive, "Secretive", __name__)


def test_a_class_that_cannot_be_instantiated_is_an_error_of_its_registration() -> None:
    result = check(as_implementation(Secretive))
    assert result.outcome == "error"
    assert "What is zeta of Secretive" in result.reason
    assert "Traceback" not in result.reason


def test_an_implementation_is_made_without_importing_pytest() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "from conformance.mapping.implementation import implementation_of\n"
        "from conformance.mapping.mapped import proposed\n"
        f"from {STRANGERS}.packed import PackedBert\n"
        f"print(implementation_of(proposed(PackedBert, 'PackedBert', '{STRANGERS}.packed')).name)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "packed-bert\n"


def test_an_exception_of_the_users_code_is_truncated_and_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raises = "raise ValueError('\\x1b[2J' + 'x' * 10**6)"
    (tmp_path / "long.py").write_text(
        f"class Long:\n    named_modules = None\n    def __init__(self, vocab_size):\n        {raises}"
    )
    assert main(["map", f"{tmp_path / 'long.py'}:Long"]) == 1
    said = capsys.readouterr().err
    assert len(said) < 21_000
    assert r"raised ValueError: \u001b[2Jxxx" in said


def test_an_exception_of_the_users_code_is_reported_as_the_users() -> None:
    with pytest.raises(CandidateError, match="its constructor raised ZeroDivisionError: of the user's code"):
        proposed(Broken, "Broken", __name__)


def _named(name: str) -> type[nn.Module]:
    """Return a correct model with a buffer of that name."""

    class Named(stranger("packed:PackedBert")):  # type: ignore[misc]  # a class
        def __init__(self, ntoken, d_model, nlayers, nhead, dim_feedforward, max_seq_len) -> None:  # type: ignore[no-untyped-def]
            super().__init__(ntoken, d_model, nlayers, nhead, dim_feedforward, max_seq_len)
            self.register_buffer(name, torch.zeros(1))

    return Named


@pytest.mark.parametrize("name", ['x",]); print(1)#', "x\nprint(1)", "x\u202e", "x\\"])
def test_a_name_that_could_become_code_in_an_adaptor_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="expected printable characters without quotes and backslashes"):
        proposed(_named(name), "Named", "home")


def test_other_unusual_names_are_written_into_a_valid_adaptor() -> None:
    text = adaptor(proposed(_named("é; print(1) # '{x}'"), "Named", "home"))
    assert any(node.value == "é; print(1) # '{x}'" for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    with pytest.raises(UsageError, match="has the name 'my-home', expected a name of Python's"):
        adaptor(proposed(_named("plain"), "Named", "my-home"))


def test_map_writes_an_adaptor_that_run_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "adaptor of a stranger.py"
    assert main(["map", f"{STRANGERS}.packed:PackedBert", "-o", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "trunk.layers.{layer}.self_attn.in_proj_weight" in shown
    assert f"run -i '{file}:packed_bert' --golden tiny" in " ".join(shown.split())
    assert "activations of a network of 3 layers match the oracle" in " ".join(shown.split())
    command = ["run", "-i", f"{file}:packed_bert", "--golden", "tiny", "--depth", "screen", "--in-process"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    written = file.read_text()
    for name, answer in ((file, "already exists"), (file.with_suffix(".txt"), "does not end in .py")):
        assert main(["map", f"{STRANGERS}.packed:PackedBert", "-o", str(name)]) == 2
        assert answer in " ".join(capsys.readouterr().err.split())
    assert file.read_text() == written


def test_a_module_name_without_an_object_is_answered_with_the_objects_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-i", f"{STRANGERS}.fused"]) == 2
    assert f"{STRANGERS}.fused:BERT" in capsys.readouterr().err


def test_new_packages_pass_their_own_tests(tmp_path: Path) -> None:
    model = tmp_path / "zebra.py"  # a file is copied, since the package could not import it
    model.write_text("from conformance.tests.third_party_models.packed import PackedBert\n\n\nclass Zebra(PackedBert):\n    pass\n")
    packages = {
        "my-bert": [],
        "their-bert": ["--map", f"{STRANGERS}.packed:PackedBert"],
        "zebra-bert": ["--map", f"{model}:Zebra"],
    }
    for name, mapped in packages.items():
        assert main(["new", str(tmp_path / name), *mapped]) == 0
        assert main(["new", str(tmp_path / name), *mapped]) == 2  # Nothing is overwritten.
    paths = [*(str(tmp_path / name / "src") for name in packages), str(Path(__file__).parents[2])]
    options = ["-q", "-p", "no:cacheprovider", "--import-mode", "importlib", "-k", "values and (tiny or tanh or position-offset)"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    tests = [str(tmp_path / name / "tests") for name in packages]
    done = run_python("-m", "pytest", *options, *tests, folder=tmp_path, environment=environment)
    assert done.returncode == 0, done.stdout[-2000:]
    assert f"{len(packages)} passed, {2 * len(packages)} skipped" in done.stdout  # their activation and positions are fixed
