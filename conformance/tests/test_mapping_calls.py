"""How a module with unfamiliar arguments is called: masks in every form, sizes with other names, and modules that cannot be
called."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conformance import CandidateError, OutputMap, check, golden_of, load_golden
from conformance.cli import main
from conformance.errors import UsageError
from conformance.mapping.call import calls
from conformance.mapping.implementation import implementation_of
from conformance.mapping.mapped import MappedModule, proposed
from conformance.mapping.probe import PROBE, batch_for
from conformance.mapping.signature import builder_of
from conformance.mapping.source import adaptor
from conformance.tests.third_party_models import proposal, stranger


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("AddedMaskBert", "(1 - batch.attention_mask[:, None, None, :].to(dtype)) * torch.finfo(dtype).min"),
        ("BlockedBert", "batch.attention_mask == 0"),
        ("LengthsBert", "batch.attention_mask.sum(1)"),
        ("KeptMaskBert", "Kept(batch.attention_mask.bool())"),
        ("SquareMaskBert", "batch.attention_mask[:, None, :].expand(-1, batch.attention_mask.shape[1], -1)"),
    ],
)
def test_a_mask_in_another_form_is_made_from_the_batchs(name: str, mask: str) -> None:
    assert mask in adaptor(proposal(f"masked:{name}"))


@pytest.mark.landing(name="WrongSignBert")
@pytest.mark.parametrize(("name", "fault"), [("WrongSignBert", "mask-sign"), ("WrongSplitBert", "head-split-interleaved")])
def test_a_mask_with_which_a_mistake_computes_more_activations_is_not_taken_for_the_right_one(name: str, fault: str) -> None:
    found = proposal(f"mistaken:{name}")
    assert found.call.arguments == "batch.input_ids, batch.token_type_ids, batch.attention_mask"
    assert fault in str(check(implementation_of(found), "deep"))


def test_a_mask_with_which_no_attention_matches_is_left_open() -> None:
    assert any(question.startswith("the form of the mask is not certain") for question in proposal("mistaken:WrongSignBert").open)


def test_a_mask_to_add_is_found_though_the_module_has_another_mistake() -> None:
    found = proposal("mistaken:FirstNormAddedMaskBert")
    assert "torch.finfo(dtype).min" in found.call.arguments
    assert not any("the form of the mask" in question for question in found.open)


def test_an_object_that_holds_only_the_mask_is_constructed_and_imported() -> None:
    found = proposal("masked:KeptMaskBert")
    assert "from conformance.tests.third_party_models.masked import Kept, KeptMaskBert" in adaptor(found)
    assert check(implementation_of(found), "tiny", depth="screen").outcome == "pass"


def test_a_forward_pass_without_a_mask_is_left_open_and_the_run_names_it() -> None:
    found = proposal("masked:MasklessBert")
    assert "no argument of forward was seen to be a mask: it is given none, and attends to padding" in found.open
    assert "mask-ignored" in str(check(implementation_of(found), "tiny"))


class Activated(nn.Module):
    def __init__(self, vocab: int, act: str, activation: Any = nn.functional.gelu) -> None:
        super().__init__()


def test_the_name_of_the_activation_is_passed_and_a_function_is_left_at_its_default() -> None:
    assert builder_of(Activated, "Activated").text == "Activated(vocab=a.vocab_size, act=a.hidden_act)"


class Kind(Enum):
    GELU = "gelu"


class Chosen(nn.Module):
    def __init__(self, vocab: int, activation: Kind = Kind.GELU) -> None:
        super().__init__()


class Unnamed(nn.Module):
    def __init__(self, **sizes: int) -> None:
        super().__init__()


def test_an_enumeration_member_is_left_at_its_default_and_unnamed_sizes_are_refused() -> None:
    assert builder_of(Chosen, "Chosen").text == "Chosen(vocab=a.vocab_size)"
    with pytest.raises(UsageError, match=r"Unnamed takes its sizes as \*\*sizes, which has no names: name them"):
        builder_of(Unnamed, "Unnamed")


@pytest.mark.parametrize("given", [None, 3, "Bert", {"hidden": 4}])
def test_an_object_that_builds_nothing_is_a_usage_error(given: Any) -> None:
    with pytest.raises(UsageError, match="thing is .*, and neither a torch.nn.Module nor a class or function that builds one"):
        proposed(given, "thing", "home")


def test_an_additive_mask_has_the_modules_dtype() -> None:
    assert check(implementation_of(proposal("masked:AddedMaskBert")), "tiny", dtype="bfloat16", depth="screen").outcome == "pass"


def test_lengths_are_passed_where_they_equal_the_mask_and_refused_elsewhere() -> None:
    implementation, tiny = implementation_of(proposal("masked:LengthsBert")), load_golden("tiny")
    padded = golden_of("padded at the end", tiny.checkpoint, {"end": batch_for(tiny.checkpoint.architecture, padded_at_end=True)})
    assert check(implementation, padded, depth="screen").outcome == "pass"
    refused = check(implementation, tiny, depth="screen")
    assert refused.outcome == "crash"
    assert "padding before a token, which lengths cannot say" in refused.reason


def test_an_unknown_mask_object_is_refused_with_what_was_understood_and_a_wrapper_can_be_mapped() -> None:
    with pytest.raises(CandidateError) as caught:
        proposal("masked:ObjectMaskBert")
    said = str(caught.value)
    assert "kinds: taken for token_type_ids" in said
    assert "Visible: its name is no usual name of an array" in said
    code = said[said.index("class Mapped") :].replace("Visible(...)", "Visible(attention_mask.bool(), causal=False)")
    names = {"__name__": __name__, **{n: stranger(f"masked:{n}") for n in ("Visible", "ObjectMaskBert")}}
    exec(code, names)
    found = proposed(names["MappedObjectMaskBert"], "MappedObjectMaskBert", __name__)
    assert found.open == ()


class TypedReturn(nn.Module):
    def forward(self, tokens: torch.Tensor, return_type: str = "logits", token_type_ids: Any = None) -> None: ...


def test_an_argument_with_the_name_of_an_array_takes_precedence_over_one_with_a_part_of_it() -> None:
    assert [call.arguments for call in calls(TypedReturn())] == ["batch.input_ids, token_type_ids=batch.token_type_ids"]


def test_sizes_at_their_defaults_are_named_where_no_known_argument_sets_them() -> None:
    found = builder_of(stranger("features:SizedBert"), "SizedBert")
    assert found.open == (
        "no argument of Sizes is known to be num_hidden_layers, num_attention_heads, and stack=12, parallel=12 keep their "
        "defaults; give a function that sets them",
    )
    assert not builder_of(stranger("packed:PackedBert"), "PackedBert").open


class Wordless(nn.Module):
    def forward(self, input_ids: torch.Tensor) -> list[str]:
        return ["no tensor"]


class Particular(nn.Module):
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return attention_mask.a_method_of_another_class()  # type: ignore[no-any-return,operator]


@pytest.mark.parametrize(
    ("module", "said"),
    [(Wordless, "forward returns a list, in which there is no tensor"), (Particular, "a_method_of_another_class")],
)
def test_a_module_that_returns_a_tensor_for_no_call_is_refused_with_an_alternative(module: Any, said: str) -> None:
    with pytest.raises(CandidateError, match=rf"(?s){said}.*def forward\(self, input_ids, token_type_ids, attention_mask\)"):
        proposed(module, module.__name__, __name__)


class NoBert(nn.Module):
    def __init__(self, vocab: int, hidden: int) -> None:
        super().__init__()
        self.odd = nn.Parameter(torch.zeros(3))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return input_ids * self.odd.sum()


def test_an_adaptor_that_maps_nothing_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "adaptor.py"
    assert main(["map", f"{__name__}:NoBert", "-o", str(file)]) == 1
    assert "is not written: no parameter of NoBert was recognised" in " ".join(capsys.readouterr().out.split())
    assert not file.exists()


def test_a_class_of_torch_in_an_annotation_is_not_the_modules_own() -> None:
    class Annotated(nn.Module):
        def forward(self, input_ids: torch.LongTensor, attention_mask: torch.BoolTensor) -> torch.Tensor:
            return input_ids * attention_mask

    first = next(iter(calls(Annotated())))
    assert "LongTensor(" not in first.arguments


@dataclass
class Sizes:
    """The sizes of a module, under another name than a config's."""

    vocab_size: int
    hidden_size: int


class Sized(nn.Module):
    """A module that is built from its sizes."""

    def __init__(self, config: Sizes) -> None:
        """Build nothing."""
        super().__init__()


class Inherited(Sized):
    """A module whose constructor is inherited."""


@pytest.mark.parametrize("factory", [Sized, Inherited])
def test_the_config_of_an_inherited_constructor_is_that_of_its_annotation(factory: type[nn.Module]) -> None:
    expected = f"{factory.__name__}(Sizes(vocab_size=a.vocab_size, hidden_size=a.hidden_size))"
    assert builder_of(factory, factory.__name__).text == expected


@pytest.mark.parametrize(
    ("name", "mask"), [("UnpaddedBert", "batch.attention_mask"), ("InvertedUnpaddedBert", "batch.attention_mask == 0")]
)
def test_a_module_of_packed_tokens_is_mapped_by_value_and_unpacked(name: str, mask: str) -> None:
    found = proposal(f"unpadded:{name}")
    assert found.call.arguments == f"batch.input_ids, batch.token_type_ids, {mask}"
    assert found.open == ()
    assert "packed=True" in adaptor(found)
    result = check(implementation_of(found), "tiny")
    assert (result.outcome, result.note) == ("pass", "")
    assert result.coverage[0] >= 24


def test_a_text_without_attention_in_a_module_of_packed_tokens_is_placed_and_the_guessed_mask_is_repeated() -> None:
    found = proposal("unpadded:SkippedTextBert")
    assert found.call.arguments == "batch.input_ids, batch.token_type_ids, batch.attention_mask"
    form = "the form of the mask is not certain: the attention probabilities match in 0 of 3 layers with model(batch.input_ids"
    assert any(sentence.startswith(form) for sentence in found.open)
    result = check(MappedModule(stranger("unpadded:SkippedTextBert"), "SkippedTextBert"), "tiny")
    assert result.outcome == "fail"
    assert form in result.note
    assert form in " ".join(str(result).split())
    assert {v.activation.rpartition(".")[2] for v in result.origins} == {"context"}
    assert "all at batch row 1" in " ".join(str(result).split())


def test_packed_rows_of_another_number_than_real_tokens_are_refused() -> None:
    batch = batch_for(PROBE).on("cpu")
    with pytest.raises(CandidateError, match="3 rows, expected one for each of the 46 real tokens"):
        OutputMap(("embeddings.LayerNorm",), packed=True).show(torch.zeros(3, 24), batch)
