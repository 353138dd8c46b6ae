"""Constructors, functions and forward methods with usual names are mapped; questions about others say what to write and run."""

import inspect
from typing import Any

import pytest
from torch import nn

from conformance import CandidateError, UsageError, check
from conformance.candidates.registry import as_implementation
from conformance.implementations.making_bert import making_bert
from conformance.mapping.mapped import proposed
from conformance.tests.test_mapping import Secretive
from conformance.tests.third_party_models import stranger


class Usual(stranger("annotated:AnnotatedBert")):  # type: ignore[misc]  # a class
    def __init__(self, vocab, dim, n_layer, n_head, hidden_dim, max_len, n_segments, eps):  # type: ignore[no-untyped-def]
        super().__init__(vocab, dim, n_layer, n_head, hidden_dim, max_len, n_segments, eps)


class Sized(stranger("annotated:AnnotatedBert")):  # type: ignore[misc]  # a class
    def __init__(self, vocab_size, hidden_dim, num_layers, num_heads, ffn_size, maxlen, type_vocab, eps):  # type: ignore[no-untyped-def]
        super().__init__(vocab_size, hidden_dim, num_layers, num_heads, ffn_size, maxlen, type_vocab, eps)


def build_usual(vocab, hidden, layers, heads, intermediate, maxlen, segments, eps):  # type: ignore[no-untyped-def]
    return Usual(vocab, hidden, layers, heads, intermediate, maxlen, segments, eps)


class Starred(nn.Linear):
    def __init__(self, vocab, hidden) -> None:  # type: ignore[no-untyped-def]
        super().__init__(vocab, hidden)

    def forward(self, *a: Any, **k: Any) -> Any:
        return super().forward(*a, **k)


@pytest.mark.parametrize("factory", [Usual, Sized])
def test_usual_names_of_sizes_are_known_and_hidden_dim_beside_another_width_is_the_intermediate_size(factory: Any) -> None:
    given = proposed(factory, factory.__name__, __name__).builder.text
    first, second = ("dim", "hidden_dim") if factory is Usual else ("hidden_dim", "ffn_size")
    assert f"{first}=a.hidden_size" in given
    assert f"{second}=a.intermediate_size" in given
    assert len(given.split(",")) == 8


def test_a_function_that_builds_a_module_from_usual_sizes_is_a_candidate() -> None:
    result = check(as_implementation(build_usual), "tiny", depth="screen")
    assert result.outcome == "pass", str(result)


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
    def engine(*given: Any) -> Any:
        return prepare(*given)

    engine.__signature__ = inspect.signature(prepare)  # type: ignore[attr-defined]
    assert check(as_implementation(engine), "tiny", depth="screen").outcome == "pass"


def test_the_refusal_of_another_function_ends_with_the_command_that_maps_it() -> None:
    def builds(zeta: int, eta: int) -> None:
        raise AssertionError

    with pytest.raises(UsageError, match=rf"run: bert-conformance map {__name__}:builds -o adaptor.py$"):
        as_implementation(builds)


def test_the_question_about_a_size_says_what_to_write_and_what_to_run() -> None:
    with pytest.raises(UsageError, match=r"return Secretive\(\.\.\.\)`, and run `bert-conformance map [\w.]+:build`$"):
        proposed(Secretive, "Secretive", __name__)


def test_inputs_without_names_are_said_to_be_unknown_and_the_proposed_class_gives_them_in_order() -> None:
    with pytest.raises(CandidateError) as caught:
        proposed(Starred, "Starred", __name__)
    assert "Its forward takes *a and **k, so the names of its inputs are unknown." in str(caught.value)
    assert "return super().forward(input_ids, attention_mask, token_type_ids)" in str(caught.value)
