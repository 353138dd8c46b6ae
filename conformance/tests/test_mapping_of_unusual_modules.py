"""Modules with unusual traits are mapped by value, or refused with a message that says what to give instead."""

import pytest
from torch import nn

from conformance import check, golden_of
from conformance.cli import main
from conformance.errors import UsageError
from conformance.goldens.batches import SEED
from conformance.goldens.generated_weights import weights
from conformance.mapping.forward_pass import PROBE, batch_for
from conformance.mapping.implementation import implementation_of
from conformance.mapping.mapped import proposed
from conformance.mapping.source import adaptor
from conformance.model.checkpoint import Checkpoint, read_only
from conformance.tests.third_party_models import STRANGERS, proposal, stranger


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", ["SparseBert", "NestedBert"])
def test_sparse_and_nested_tensors_inside_a_module_do_not_prevent_its_mapping(name: str) -> None:
    mapped = proposal(f"unusual:{name}")
    assert mapped.coverage[0] == mapped.coverage[1]
    assert mapped.has_output


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


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm", "parametrizations.weight_norm"])
def test_a_weight_that_a_hook_or_a_parametrization_computes_from_others_is_refused_with_the_remedy(name: str) -> None:
    def build(vocab: int, width: int, layers: int, heads: int, inner: int, maxlen: int) -> nn.Module:
        module: nn.Module = stranger("unusual:PlainBert")(vocab, width, layers, heads, inner, maxlen)
        change = nn.utils.parametrizations.weight_norm if name.startswith("parametrizations") else getattr(nn.utils, name)
        change(module.get_submodule("layers.1.up"))
        return module

    remover = "remove_parametrizations" if name.startswith("parametrizations") else f"remove_{name}"
    with pytest.raises(UsageError, match=rf"layers\.1\.up\.weight .*{remover}"):
        proposed(build, "build", __name__)


def test_a_table_of_positions_of_a_fixed_length_is_mapped_and_required() -> None:
    mapped = proposal("unusual:FixedLengthBert")
    assert mapped.coverage[0] == mapped.coverage[1]
    implementation, a = implementation_of(mapped), mapped.architecture
    assert implementation.supports(a.with_(max_position_embeddings=512), "cpu", "float32") is None
    assert "max_position_embeddings" in str(implementation.supports(a.with_(max_position_embeddings=40), "cpu", "float32"))


def test_in_a_network_of_one_layer_only_the_list_of_layers_is_taken_for_layers() -> None:
    a = PROBE.with_(num_hidden_layers=1, heads=("masked_lm",))
    sizes = (a.vocab_size, a.hidden_size, 1, a.num_attention_heads, a.intermediate_size, a.max_position_embeddings)
    mapped = proposed(stranger("unusual:ListsBert")(*sizes), "module", __name__, a)
    assert (mapped.open, mapped.unmapped, mapped.last) == (mapped.builder.open, (), "len(model.layers) - 1")
    golden = golden_of("one layer", Checkpoint(a, read_only(weights(SEED, a))), {"rows": batch_for(a)})
    assert check(implementation_of(mapped), golden, depth="screen").outcome == "pass"


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("unusual:NamedLayersBert", ['"blocks.layer_{layer}.q.weight"']),
        ("unusual:AttributesBert", ['"block{layer+1}.q.weight"']),
        ("unusual:Holder.Bert", ["import Holder\n", "build=lambda a: Holder.Bert("]),
        ("unusual:model", ["build=lambda a: model("]),
        ("layouts:SeparateHeadsBert", ['"layers.{layer}.parts.{head}.q.weight": per_head(']),
        ("layouts:KernelHeadsBert", ['"layers.{layer}.parts.{head}.w_q": permuted(']),
        ("layouts:SeparateOutputsBert", ['"layers.{layer}.outs.{head}.weight": permuted(']),
        ("unusual:ResultBert", [": outputs.last,\n"]),
        ("unusual:StatesBert", [": outputs[0][last],\n"]),
        ("unusual:FlatBert", [": outputs[last + 1],\n"]),
        ("unusual:NumberedBert", [': outputs[f"layer_{last}_output"],\n']),
    ],
)
def test_layers_heads_results_and_owners_in_other_forms_are_written_into_the_adaptor(name: str, entries: list[str]) -> None:
    mapped = proposal(name)
    assert mapped.is_runnable
    assert mapped.open == ()
    assert mapped.coverage[0] == mapped.coverage[1] or "{head}" in entries[0]
    source = adaptor(mapped)
    assert [entry for entry in entries if entry not in source] == [], source
    for golden in ("tiny", "deep") if "last" in entries[0] else ("tiny",):  # the last layer is selected at any depth
        result = check(implementation_of(mapped), golden, depth="screen")
        assert (result.outcome, result.note if "last]" in entries[0] else "") == ("pass", "")


def test_the_gradients_of_heads_that_are_modules_are_joined() -> None:
    result = check(implementation_of(proposal("layouts:SeparateHeadsBert")), "tiny", check="gradients", depth="screen")
    assert result.outcome == "pass", str(result)
    judged = {v.activation for v in result.verdicts if v.outcome == "pass"}
    assert "bert.encoder.layer.0.attention.self.query.weight.grad" in judged


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ThirdLayerBert", "on a network of 2 layers, the adaptor fails: IndexError: list index out of range"),
        ("Unrelated", ""),  # nothing of it matches
    ],
)
def test_an_adaptor_that_cannot_be_run_unchanged_is_not_offered_to_be_run(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["map", f"{STRANGERS}.unusual:{name}"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert words in printed
    assert "next: " not in printed


def test_a_module_with_weights_of_its_layers_that_are_not_mapped_cannot_be_run_unchanged() -> None:
    mapped = proposal("layouts:StackedHeadsBert")
    assert any("qkv" in name for name in mapped.unmapped)
    assert mapped.has_output
    assert not mapped.is_runnable


def test_heads_with_query_key_and_value_in_one_tensor_are_mapped_by_name() -> None:
    mapped = proposal("layouts:FusedHeadsBert")
    assert '"layers.{layer}.parts.{head}.qkv.weight": per_head(' in adaptor(mapped)
    assert "layers.{layer}.parts.{head}.qkv.weight: by name alone, which no value confirms" in mapped.open
    assert check(implementation_of(mapped), "tiny").outcome == "pass"
