"""Modules with unusual traits are mapped by value, or refused with a message that says what to give instead."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conformance import check, golden_of
from conformance.cli import main
from conformance.errors import CandidateError, UsageError
from conformance.goldens.generated_weights import weights
from conformance.goldens.recipe import SEED
from conformance.mapping.call import calls
from conformance.mapping.implementation import implementation_of
from conformance.mapping.mapped import proposed
from conformance.mapping.probe import PROBE, batch_for
from conformance.mapping.signature import builder_of
from conformance.mapping.source import adaptor
from conformance.model.checkpoint import Checkpoint, read_only
from conformance.tests.third_party_models import proposal, stranger


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", ["SparseBert", "NestedBert"])
def test_sparse_and_nested_tensors_inside_a_module_do_not_prevent_its_mapping(name: str) -> None:
    found = proposal(f"unusual:{name}")
    assert found.coverage[0] == found.coverage[1]
    assert found.has_output


@pytest.mark.filterwarnings("ignore")  # of torch.jit.trace
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("LazyBert", r"pool\.weight \(2 such tensors in all\) has no values"),
        ("on_meta", r"words\.weight \(53 such tensors in all\) has no values"),
        ("traced", r"forward of .* is a ScriptMethod, whose arguments Python cannot tell"),
        ("UncallableBert", r"forward of UncallableBert is a NoneType"),
    ],
)
def test_a_module_without_values_or_without_a_signature_is_a_usage_error(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        proposal(f"unusual:{name}")


def test_a_type_whose_arguments_python_cannot_tell_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="dict is a type, whose arguments Python cannot tell"):
        proposed(dict, "dict", "builtins")


def test_a_forward_pass_that_exits_the_process_is_reported_as_one_that_fails() -> None:
    with pytest.raises(CandidateError, match=r"(?s)no way of calling it gives a tensor.*SystemExit: 3"):
        proposal("unusual:ExitingBert")


def test_of_two_masks_the_one_that_is_used_is_found_by_value() -> None:
    found = proposal("unusual:SquareMaskFirstBert")
    assert found.call.arguments == "batch.input_ids, batch.token_type_ids, src_key_padding_mask=batch.attention_mask == 0"
    assert found.open == ()


class Sequenced(nn.Module):
    def forward(self, sequence: Any, position_ids: Any = None, token_type_ids: Any = None, mask: Any = None) -> None: ...


class Flagged(nn.Module):
    def forward(self, sequence: Any, segments: Any, mask: Any, return_hidden: bool = False) -> None: ...


class Typed(nn.Module):
    def forward(self, tokens: Any, mask: Any, return_type: str = "hidden", segments: Any = None) -> None: ...


@pytest.mark.parametrize(
    ("module", "call"),
    [
        (Sequenced, "batch.input_ids, token_type_ids=batch.token_type_ids, mask=batch.attention_mask"),
        (Flagged, "batch.input_ids, batch.token_type_ids, batch.attention_mask"),
        (Typed, "batch.input_ids, batch.attention_mask, segments=batch.token_type_ids"),
    ],
)
def test_positions_settings_and_words_that_contain_id_are_not_taken_for_arrays(module: type[nn.Module], call: str) -> None:
    assert next(calls(module())).arguments == call


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize(("name", "remover"), [("weight_norm", "remove_weight_norm"), ("spectral_norm", "remove_spectral_norm")])
def test_a_weight_that_a_hook_computes_from_others_is_refused(name: str, remover: str) -> None:
    def build(vocab: int, width: int, layers: int, heads: int, inner: int, maxlen: int) -> nn.Module:
        module: nn.Module = stranger("unusual:PlainBert")(vocab, width, layers, heads, inner, maxlen)
        getattr(nn.utils, name)(module.get_submodule("layers.1.up"))
        return module

    with pytest.raises(UsageError, match=rf"layers\.1\.up\.weight is computed from others by .*{remover} for each such part"):
        proposed(build, "build", __name__)


@dataclass
class Settings:
    vocab: int = 9
    hidden: int = 8
    layers: int = 2
    ffn: int = 16


class Configured(nn.Module):
    def __init__(self, config: Settings = Settings()) -> None:  # noqa: B008  # the default is what is tested
        super().__init__()


class MaybeConfigured(nn.Module):
    def __init__(self, config: Settings | None = None, c: int = 3) -> None:
        super().__init__()


class Unannotated(nn.Module):
    def __init__(self, config=Settings()) -> None:  # type: ignore[no-untyped-def]  # noqa: B008
        super().__init__()


@pytest.mark.parametrize("factory", [Configured, MaybeConfigured, Unannotated])
def test_a_configuration_is_given_also_if_it_has_a_default(factory: type[nn.Module]) -> None:
    sizes = "vocab=a.vocab_size, hidden=a.hidden_size, layers=a.num_hidden_layers, ffn=a.intermediate_size"
    assert builder_of(factory, factory.__name__).text == f"{factory.__name__}(Settings({sizes}))"


def test_a_table_of_positions_of_a_fixed_length_is_mapped_and_required() -> None:
    found = proposal("unusual:FixedLengthBert")
    assert found.coverage[0] == found.coverage[1]
    implementation, a = implementation_of(found), found.architecture
    assert implementation.supports(a.with_(max_position_embeddings=512), "cpu", "float32") is None
    assert "max_position_embeddings" in str(implementation.supports(a.with_(max_position_embeddings=40), "cpu", "float32"))


class Wrapping:
    def __init__(self, mask: Any) -> None:
        self.mask = mask


class Quoted(nn.Module):
    def forward(self, tokens: "torch.Tensor", segments: "torch.Tensor", mask: "Wrapping") -> None: ...


def test_an_annotation_that_is_a_string_is_evaluated() -> None:
    assert next(calls(Quoted())).arguments == "batch.input_ids, batch.token_type_ids, Wrapping(batch.attention_mask)"


@pytest.mark.parametrize("longest", [1, 2, 3])
def test_every_row_of_the_batch_for_a_mapping_has_a_token(longest: int) -> None:
    for padded_at_end in (False, True):
        assert batch_for(PROBE.with_(max_position_embeddings=longest), padded_at_end=padded_at_end).mask.any(-1).all()


class Measured(nn.Module):
    def forward(self, tokens: Any, segments: Any, max_len: Any = None, mask: Any = None, valid: Any = None) -> None: ...


def test_every_argument_that_may_be_the_mask_is_tried_and_those_of_unknown_names_come_last() -> None:
    tried = [call.arguments for call in calls(Measured())]
    places = [tried.index(f"batch.input_ids, batch.token_type_ids, {mask}batch.attention_mask") for mask in ("", "mask=", "valid=")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("name", "layer"), [("NamedLayersBert", "blocks.layer_{layer}.q.weight"), ("AttributesBert", "block{layer+1}.q.weight")]
)
def test_layers_are_recognised_by_a_number_in_their_name(name: str, layer: str) -> None:
    found = proposal(f"unusual:{name}")
    assert found.coverage[0] == found.coverage[1]
    assert layer in {held.tensor.name for held in found.parameters}
    assert check(implementation_of(found), "tiny", depth="screen").outcome == "pass"


def test_layers_that_are_not_recognised_are_counted_as_not_matching() -> None:
    embeddings = 5
    assert proposal("unusual:UnnumberedBert").coverage == (embeddings, proposal("unusual:PlainBert").coverage[1])


def test_in_a_network_of_one_layer_only_the_list_of_layers_is_taken_for_layers() -> None:
    a = PROBE.with_(num_hidden_layers=1, heads=("masked_lm",))
    sizes = (a.vocab_size, a.hidden_size, 1, a.num_attention_heads, a.intermediate_size, a.max_position_embeddings)
    found = proposed(stranger("unusual:ListedBert")(*sizes), "module", __name__, a)
    assert (found.open, found.unmapped, found.last) == (found.builder.open, (), "len(model.layers) - 1")
    golden = golden_of("one layer", Checkpoint(a, read_only(weights(SEED, a))), {"rows": batch_for(a)})
    assert check(implementation_of(found), golden, depth="screen").outcome == "pass"


def test_results_in_a_dataclass_and_in_nested_containers_are_returned_by_name() -> None:
    found = proposal("unusual:ResultBert")
    assert {one.names[0]: one.selector for one in found.returns} == {
        "encoder.layer.2.output.LayerNorm": ".last",
        "pooler.activation": '.others["pooled"][0]',
    }
    assert found.open == ()
    result = check(implementation_of(found), "tiny", depth="screen")
    assert result.outcome == "pass", str(result)


def test_a_class_that_is_an_attribute_is_imported_with_its_owner() -> None:
    found = proposal("unusual:Holder.Bert")
    source = adaptor(found)
    assert "import Holder\n" in source
    assert "build=lambda a: Holder.Bert(" in source
    assert check(implementation_of(found), "tiny", depth="screen").outcome == "pass"


def test_a_function_is_refused_only_if_the_adaptor_has_one_of_its_name() -> None:
    found = proposal("unusual:model")
    assert "build=lambda a: model(" in adaptor(found)
    assert check(implementation_of(found), "tiny", depth="screen").outcome == "pass"
    with pytest.raises(UsageError, match="the module has the name 'call', expected one that the adaptor does not need itself"):
        proposal("unusual:call")


def test_an_adaptor_is_said_to_be_written_only_if_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = tmp_path / "my-models.py"
    module.write_text("from conformance.tests.third_party_models.unusual import PlainBert\n\nclass MyBert(PlainBert): pass\n")
    assert main(["map", f"{module}:MyBert", "-o", str(tmp_path / "written.py")]) == 2
    out, err = capsys.readouterr()
    assert "word_embeddings" in out
    assert "the adaptor is in" not in out
    assert "the module has the name 'my-models'" in err
    assert not (tmp_path / "written.py").exists()


def test_an_adaptor_that_could_not_import_its_module_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, other = tmp_path / "models.py", tmp_path / "other"
    module.write_text("")
    assert main(["map", f"{module}:MyBert", "-o", str(other / "written.py")]) == 2
    assert f"there is no folder {other}" in capsys.readouterr().err
    other.mkdir()
    assert main(["map", f"{module}:MyBert", "-o", str(other / "written.py")]) == 2
    assert f"give -o {tmp_path / 'written.py'}" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("name", "selected"),
    [("ListedBert", "outputs[0][last]"), ("FlatBert", "outputs[last + 1]"), ("NumberedBert", 'outputs[f"layer_{last}_output"]')],
)
def test_the_last_of_the_outputs_of_all_layers_is_selected_in_a_network_of_any_depth(name: str, selected: str) -> None:
    found = proposal(f"listed:{name}")
    assert found.is_runnable
    assert f": {selected},\n" in adaptor(found)
    for golden in ("tiny", "deep"):
        result = check(implementation_of(found), golden, depth="screen")
        assert (result.outcome, result.note) == ("pass", "")


def test_an_adaptor_that_fails_at_another_depth_cannot_be_run_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    found = proposal("listed:ThirdLayerBert")
    assert not found.is_runnable
    assert "on a network of 2 layers, the adaptor fails: IndexError: list index out of range" in found.open
    assert main(["map", "conformance.tests.third_party_models.listed:ThirdLayerBert"]) == 1
    assert "next: " not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("SeparateHeadsBert", '"layers.{layer}.attention.heads.{head}.q.weight": per_head('),
        ("KernelHeadsBert", '"layers.{layer}.attention.heads.{head}.w_q": permuted('),
    ],
)
def test_heads_that_are_modules_are_mapped_by_value(name: str, entry: str) -> None:
    found = proposal(f"separate_heads:{name}")
    assert found.is_runnable
    assert found.open == ()
    assert entry in adaptor(found)
    assert check(implementation_of(found), "tiny").outcome == "pass"


def test_heads_with_one_tensor_for_query_key_and_value_are_mapped() -> None:
    found = proposal("separate_heads:FusedHeadsBert")
    assert '"layers.{layer}.attention.heads.{head}.qkv.weight": per_head(' in adaptor(found)
    assert check(implementation_of(found), "tiny").outcome == "pass"


def test_a_module_with_weights_of_its_layers_that_are_not_mapped_cannot_be_run_unchanged() -> None:
    found = proposal("separate_heads:StackedHeadsBert")
    assert any("qkv" in name for name in found.unmapped)
    assert found.has_output
    assert not found.is_runnable


def test_the_gradients_of_heads_that_are_modules_are_joined() -> None:
    found = implementation_of(proposal("separate_heads:SeparateHeadsBert"))
    result = check(found, "tiny", check="gradients", depth="screen")
    assert result.outcome == "pass", str(result)
    judged = {v.activation for v in result.verdicts if v.outcome == "pass"}
    assert "bert.encoder.layer.0.attention.self.query.weight.grad" in judged


def test_a_module_of_which_nothing_matches_is_not_offered_to_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", "conformance.tests.third_party_models.unusual:Unrelated"]) == 1
    assert "next: " not in capsys.readouterr().out
