"""How a module with unfamiliar arguments is built and called: sizes, configurations, masks in every form, and refusals."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conformance import CandidateError, OutputMap, check, golden_of, load_golden
from conformance.candidates.registry import as_implementation
from conformance.cli import main
from conformance.errors import UsageError
from conformance.implementations.making_bert import making_bert
from conformance.mapping.call import calls
from conformance.mapping.forward_pass import PROBE, batch_for
from conformance.mapping.implementation import implementation_of
from conformance.mapping.mapped import MappedModule, proposed
from conformance.mapping.signature import builder_of
from conformance.mapping.source import adaptor
from conformance.tests.third_party_models import proposal, stranger

# How a module is built.


class Kind(Enum):
    GELU = "gelu"


@dataclass
class Settings:
    vocab: int = 9
    hidden: int = 8
    layers: int = 2
    ffn: int = 16


def configured(config: Settings = Settings()) -> None: ...  # noqa: B008  # the default is what is tested


def maybe_configured(config: Settings | None = None, c: int = 3) -> None: ...


def unannotated(config=Settings()) -> None: ...  # type: ignore[no-untyped-def]  # noqa: B008


class Annotated(nn.Module):
    def __init__(self, config: Settings) -> None:
        super().__init__()


class Inherited(Annotated):
    """A module whose constructor is inherited."""


SETTINGS = "F(Settings(vocab=a.vocab_size, hidden=a.hidden_size, layers=a.num_hidden_layers, ffn=a.intermediate_size))"


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (lambda vocab, act, activation=nn.functional.gelu: None, "F(vocab=a.vocab_size, act=a.hidden_act)"),
        (lambda vocab, activation=Kind.GELU: None, "F(vocab=a.vocab_size)"),
        *((factory, SETTINGS) for factory in (configured, maybe_configured, unannotated, Annotated, Inherited)),
    ],
)
def test_configurations_and_names_of_functions_are_given_and_other_objects_keep_their_defaults(factory: Any, text: str) -> None:
    assert builder_of(factory, "F").text == text


def takes_any_keyword(**sizes: int) -> None: ...


@pytest.mark.parametrize(
    ("given", "words"),
    [
        *((given, "F is .*, and neither a torch.nn.Module nor a class or function") for given in (None, 3, "Bert", {"hidden": 4})),
        (takes_any_keyword, r"F takes its sizes as \*\*sizes, which has no names: name them"),
        (dict, "dict|F is a type, whose arguments Python cannot tell"),
    ],
)
def test_an_object_that_builds_nothing_or_has_no_names_of_arguments_is_a_usage_error(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        proposed(given, "F", "home")


@pytest.mark.parametrize(
    "prepare",
    [
        lambda c, device, dtype: making_bert.prepare(c, device, dtype),
        lambda config, dev, dt, /: making_bert.prepare(config, dev, dt),
        lambda args, device="cpu", dtype="float32": making_bert.prepare(args, device, dtype),
        lambda c, *others: making_bert.prepare(c, *others),
    ],
)
def test_a_function_that_is_called_like_prepare_is_a_candidate_whatever_its_arguments_are_called(prepare: Any) -> None:
    assert as_implementation(prepare).prepare is prepare
    assert check(as_implementation(prepare), "tiny", depth="screen").outcome == "pass"


# How a module is called.


def _module(forward: Callable[..., Any]) -> Any:
    return type("Module", (nn.Module,), {"forward": forward})()


class Wrapping:
    def __init__(self, mask: Any) -> None:
        self.mask = mask


def quoted(self: Any, tokens: "torch.Tensor", segments: "torch.Tensor", mask: "Wrapping") -> None: ...


def of_torch(self: Any, input_ids: torch.LongTensor, segments: Any, mask: torch.BoolTensor) -> None: ...


@pytest.mark.parametrize(
    ("forward", "call"),
    [
        (
            lambda self, sequence, position_ids=None, token_type_ids=None, mask=None: None,
            "batch.input_ids, token_type_ids=batch.token_type_ids, mask=batch.attention_mask",
        ),
        (
            lambda self, sequence, segments, mask, return_hidden=False: None,
            "batch.input_ids, batch.token_type_ids, batch.attention_mask",
        ),
        (
            lambda self, tokens, mask, return_type="hidden", segments=None: None,
            "batch.input_ids, batch.attention_mask, segments=batch.token_type_ids",
        ),
        (
            lambda self, tokens, return_type="logits", token_type_ids=None: None,
            "batch.input_ids, token_type_ids=batch.token_type_ids",
        ),
        (quoted, "batch.input_ids, batch.token_type_ids, Wrapping(batch.attention_mask)"),
        (of_torch, "batch.input_ids, batch.token_type_ids, batch.attention_mask"),
    ],
)
def test_arrays_are_told_from_positions_settings_and_annotations(forward: Callable[..., Any], call: str) -> None:
    assert next(iter(calls(_module(forward)))).arguments == call


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("masked:AddedMaskBert", "(1 - batch.attention_mask[:, None, None, :].to(dtype)) * torch.finfo(dtype).min"),
        ("masked:BlockedBert", "batch.attention_mask == 0"),
        ("masked:LengthsBert", "batch.attention_mask.sum(1)"),
        ("masked:KeptMaskBert", "Kept(batch.attention_mask.bool())"),
        ("masked:SquareMaskBert", "batch.attention_mask[:, None, :].expand(-1, batch.attention_mask.shape[1], -1)"),
        ("masked:UnpaddedBert", "batch.input_ids, batch.token_type_ids, batch.attention_mask\n"),
        ("masked:InvertedUnpaddedBert", "batch.input_ids, batch.token_type_ids, batch.attention_mask == 0\n"),
        ("unusual:SquareMaskFirstBert", "batch.input_ids, batch.token_type_ids, src_key_padding_mask=batch.attention_mask == 0\n"),
        ("mistaken:FirstNormAddedMaskBert", "torch.finfo(dtype).min"),
    ],
)
def test_a_mask_in_another_form_is_made_from_the_batchs(name: str, mask: str) -> None:
    mapped = proposal(name)
    assert mask in f"{mapped.call.arguments}\n"
    assert not [question for question in mapped.open if "the form of the mask" in question]


@pytest.mark.parametrize(("name", "is_certain"), [("WrongSignBert", False), ("WrongSplitBert", True)])
def test_a_mask_with_which_a_mistake_computes_more_activations_is_not_taken_for_the_right_one(name: str, is_certain: bool) -> None:
    mapped = proposal(f"mistaken:{name}")
    assert mapped.call.arguments == "batch.input_ids, batch.token_type_ids, batch.attention_mask"
    assert is_certain or any(question.startswith("the form of the mask is not certain") for question in mapped.open)


def test_under_hugging_faces_names_the_mask_is_hugging_faces_and_another_form_under_other_names_is_stated() -> None:
    result = check(implementation_of(proposal("mistaken:WeakMaskBert")), "tiny")
    assert (result.outcome, [finding.fault.name for finding in result.findings if finding.fault]) == ("fail", ["mask-constant"])
    other = check(MappedModule(stranger("mistaken:WeakMaskOfOtherNamesBert"), "WeakMaskOfOtherNamesBert"), "tiny", depth="screen")
    assert other.outcome == "pass"
    assert "torch.finfo(dtype).min), with which every layer masks as BERT does" in other.note
    assert "suggest model(batch.input_ids, batch.token_type_ids, batch.attention_mask), which gives another result" in other.note


def test_a_mask_to_add_has_the_modules_dtype_and_an_object_for_the_mask_is_imported() -> None:
    assert check(implementation_of(proposal("masked:AddedMaskBert")), "tiny", dtype="bfloat16", depth="screen").outcome == "pass"
    kept = proposal("masked:KeptMaskBert")
    assert "from conformance.tests.third_party_models.masked import Kept, KeptMaskBert" in adaptor(kept)
    assert check(implementation_of(kept), "tiny", depth="screen").outcome == "pass"


def test_a_forward_pass_without_a_mask_is_left_open_and_the_run_names_it() -> None:
    mapped = proposal("masked:MasklessBert")
    assert "no argument of forward was seen to be a mask: it is given none, and attends to padding" in mapped.open
    assert "mask-ignored" in str(check(implementation_of(mapped), "tiny"))


# Modules of packed tokens.


@pytest.mark.parametrize("name", ["UnpaddedBert", "InvertedUnpaddedBert"])
def test_a_module_of_packed_tokens_is_mapped_by_value_and_unpacked(name: str) -> None:
    mapped = proposal(f"masked:{name}")
    assert mapped.open == ()
    assert "packed=True" in adaptor(mapped)
    result = check(implementation_of(mapped), "tiny", depth="screen")
    assert (result.outcome, result.note) == ("pass", "")
    assert result.coverage[0] >= 24


# Modules that cannot be called.


class Wordless(nn.Module):
    def forward(self, input_ids: torch.Tensor) -> list[str]:
        return ["no tensor"]


class Particular(nn.Module):
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return attention_mask.a_method_of_another_class()  # type: ignore[no-any-return,operator]


class Starred(nn.Linear):
    def __init__(self, vocab, hidden) -> None:  # type: ignore[no-untyped-def]
        super().__init__(vocab, hidden)

    def forward(self, *a: Any, **k: Any) -> Any:
        return super().forward(*a, **k)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Wordless, "forward returns a list, in which there is no tensor.*Give instead a class whose forward takes input_ids, "),
        (Particular, "a_method_of_another_class.*Give instead a class"),
        (Starred, r"Its forward takes \(\*a: .*, \*\*k: "),
        (stranger("unusual:ExitingBert"), "no way of calling it gives a tensor.*SystemExit: 3"),
    ],
)
def test_a_module_that_returns_a_tensor_for_no_call_is_refused_with_an_alternative(module: Any, said: str) -> None:
    with pytest.raises(CandidateError, match=f"(?s){said}"):
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


def test_a_text_without_attention_in_a_module_of_packed_tokens_is_placed_and_the_guessed_mask_is_repeated() -> None:
    form = "the form of the mask is not certain: the attention probabilities match in 0 of 3 layers with model(batch.input_ids"
    result = check(MappedModule(stranger("masked:SkippedTextBert"), "SkippedTextBert"), "tiny")
    assert result.outcome == "fail"
    assert form in result.note
    said = " ".join(str(result).split())
    assert form in said
    assert "all at batch row 1" in said
    assert {v.activation.rpartition(".")[2] for v in result.origins} == {"context"}


def test_packed_rows_of_another_number_than_real_tokens_are_refused() -> None:
    with pytest.raises(CandidateError, match="3 rows, expected one for each of the 46 real tokens"):
        OutputMap(("embeddings.LayerNorm",), packed=True).show(torch.zeros(3, 24), batch_for(PROBE).on("cpu"))


def test_lengths_are_passed_where_they_equal_the_mask_and_refused_elsewhere() -> None:
    implementation, tiny = implementation_of(proposal("masked:LengthsBert")), load_golden("tiny")
    padded = golden_of("padded at the end", tiny.checkpoint, {"end": batch_for(tiny.checkpoint.architecture, padded_at_end=True)})
    assert check(implementation, padded, depth="screen").outcome == "pass"
    refused = check(implementation, tiny, depth="screen")
    assert refused.outcome == "crash"
    assert "padding before a token, which lengths cannot say" in refused.reason


def test_every_argument_that_may_be_the_mask_is_tried_and_those_of_unknown_names_come_last() -> None:
    module = _module(lambda self, tokens, segments, max_len=None, mask=None, valid=None: None)
    tried = [call.arguments for call in calls(module)]
    places = [tried.index(f"batch.input_ids, batch.token_type_ids, {mask}batch.attention_mask") for mask in ("", "mask=", "valid=")]
    assert places == sorted(places)
