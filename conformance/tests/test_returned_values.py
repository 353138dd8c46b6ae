"""A module that computes every layer and returns another tensor does not conform, whether or not its adaptor returns the output."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from conformance import TorchImplementation, check
from conformance.implementations.making_bert import build, making_bert
from conformance.mapping.implementation import implementation_of
from conformance.mapping.mapped import proposed
from conformance.tests.third_party_models import proposal
from conformance.tests.third_party_models.unusual import StatesBert

LAST = "encoder.layer.1.output.LayerNorm"
ANOTHER = "the module returns another tensor than its last layer computes"

# Mapped modules, whose adaptor returns the output by name.


class Returning(StatesBert):
    """Returns `change` of the layers' outputs and the mask, and the pooled output."""

    def __init__(self, *sizes: int, change: Callable[[Any, Any], Any]) -> None:
        super().__init__(*sizes)
        self.change = change

    def forward(self, input_ids: Any, token_type_ids: Any, attention_mask: Any) -> Any:
        _, *states = self.states(input_ids, token_type_ids, attention_mask)
        return self.change(states, attention_mask[..., None].to(states[0].dtype)), self.pooled(states[-1])


def _of_sizes(change: Callable[[Any, Any], Any]) -> Callable[..., nn.Module]:
    def builds(vocab: int, width: int, layers: int, heads: int, inner: int, maxlen: int) -> nn.Module:
        return Returning(vocab, width, layers, heads, inner, maxlen, change=change)

    return builds


@pytest.fixture(scope="module")
def mapped() -> TorchImplementation:
    return implementation_of(proposed(_of_sizes(lambda states, mask: states[-1]), "builds", "home"))


def _changed(mapped: TorchImplementation, change: Callable[[Any, Any], Any]) -> TorchImplementation:
    def builds(a: Any) -> nn.Module:
        sizes = (a.vocab_size, a.hidden_size, a.num_hidden_layers, a.num_attention_heads, a.intermediate_size)
        return _of_sizes(change)(*sizes, a.max_position_embeddings)

    return replace(mapped, build=builds)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda states, mask: states[0], f"{LAST}: {ANOTHER}"),
        (lambda states, mask: states[-1][:, 1:], f"{LAST}: {ANOTHER}"),
        (lambda states, mask: states[-1] * 1.5, f"{LAST}: {ANOTHER}"),
        (lambda states, mask: states[-1] * (1 - mask), f"{LAST}: {ANOTHER}"),
        (lambda states, mask: states[-1], ""),
        (lambda states, mask: states[-1] * mask, ""),  # padding may have any values
    ],
    ids=["an earlier layer", "shortened", "scaled", "zero at tokens", "whole", "zero at padding"],
)
def test_an_output_that_is_returned_by_name_is_compared_with_the_last_layer_and_judged_once(
    change: Any, reason: str, mapped: TorchImplementation
) -> None:
    result = check(_changed(mapped, change), depth="screen")
    assert result.outcome == ("fail" if reason else "pass"), str(result)
    assert reason in result.reason
    names = [v.batch for v in result.verdicts if v.activation == LAST]
    assert len(names) == len(set(names))


def test_a_wrong_result_is_mapped_by_its_shape_in_any_layout_and_judged() -> None:
    wrong = proposal("mistaken:LastNormBert")
    assert wrong.open == wrong.builder.open
    assert wrong.differs == ("encoder.layer.2.output.LayerNorm: the module computes something else there; `run` says what",)
    result = check(implementation_of(wrong), "deep", depth="screen")
    assert result.outcome == "fail"
    assert result.origins[0].activation == "encoder.layer.11.output.LayerNorm"
    assert wrong.is_runnable
    assert ("by its shape, which no value confirms", "the module") in {(row[3], row[1]) for row in wrong.rows()}
    (output,) = proposal("mistaken:PositionsFirstBert").returned_outputs
    assert (output.arrangement, output.is_by_shape) == ("x.transpose(0, 1)", True)


# Modules whose adaptor returns nothing: what they return is compared with the exposed activations.


class _Around(nn.Module):
    """A correct module around the exercise's, whose result is `form(last hidden state, embeddings, layer 0's output)`."""

    def __init__(self, inner: nn.Module, form: Callable[..., Any]) -> None:
        super().__init__()
        self.inner, self.form, self.states = inner, form, list[Any]()
        for layer in (inner.embedding, *inner.transformer):  # type: ignore[union-attr]
            layer.register_forward_hook(lambda _module, _inputs, result: self.states.append(result))

    def forward(self, ids: Any, types: Any, mask: Any) -> Any:
        self.states.clear()
        self.inner(ids, types, mask)
        embeddings, first, last = self.states
        return self.form(last, embeddings, first)

    def encode(self, batch: Any) -> Any:
        return self.forward(batch.input_ids, batch.token_type_ids, batch.attention_mask)


def _around(form: Callable[..., Any], shown: Any = making_bert.activations, **more: Any) -> TorchImplementation:
    def inside(key: Any) -> Any:
        return f"inner.{key}" if isinstance(key, str) else replace(key, path=f"inner.{key.path}")

    return replace(
        making_bert,
        build=lambda a: _Around(build(a), form),
        parameters={inside(key): value for key, value in making_bert.parameters.items()},
        activations={inside(key): value for key, value in shown.items()},
        **more,
    )


@dataclass
class _Output:
    hidden: Any
    others: Any = None


class _Slots:
    __slots__ = ("hidden",)

    def __init__(self, hidden: Any) -> None:
        self.hidden = hidden


_FORMS: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda x: x,
    "tuple": lambda x: (x, None),
    "nested": lambda x: {"states": [{"last": x}]},
    "dataclass": _Output,
    "object": lambda x: SimpleNamespace(hidden=x),
    "slots": _Slots,
    "numpy": lambda x: [x.numpy()],
    "(S, B, H)": lambda x: x.transpose(0, 1),
    "(B, H, S)": lambda x: x.transpose(1, 2),
    "(B S, H)": lambda x: x.flatten(0, 1),
    "(S B, H)": lambda x: x.transpose(0, 1).flatten(0, 1),
    "(B, S H)": lambda x: x.flatten(1),
}


@pytest.mark.parametrize("form", _FORMS.values(), ids=_FORMS)
def test_the_last_hidden_state_and_a_wrong_tensor_are_recognised_in_any_container_and_layout(form: Any) -> None:
    right, wrong = (check(_around(lambda last, *_, x=x: form(last * x)), depth="screen") for x in (1.0, 1.5))
    assert (right.outcome, right.note) == ("pass", "")
    assert wrong.outcome == "fail"
    assert ANOTHER in wrong.reason


NOT_COMPARED = "not compared in the returned value: {} of"
NOTHING = "the returned value was not compared: no tensor in it equals an exposed activation"


@pytest.mark.parametrize(
    ("form", "note"),
    [
        (lambda last, embeddings, first: [embeddings, first, last], ""),
        (lambda last, embeddings, first: (last, torch.stack([embeddings, first, last])), ""),
        (lambda last, embeddings, first: (last[:, 0], torch.stack([embeddings, first, last], 1)), ""),
        (lambda last, *_: (last, {"pooled": last.mean(1)}), NOT_COMPARED.format('[1]["pooled"]')),
        (lambda last, _, first: (last, first + 1), NOT_COMPARED.format("[1]")),
        (lambda last, *_: _Output(last, [last, 2 * last]), NOT_COMPARED.format(".others[1]")),
        (lambda *_: None, NOTHING),
        (lambda last, *_: last.sum(), NOTHING),
        (lambda last, *_: iter([last * 1.5]), NOTHING),
    ],
)
def test_a_pass_says_which_returned_tensors_were_not_compared(form: Any, note: str) -> None:
    result = check(_around(form), depth="screen")
    assert result.outcome == "pass"
    assert note in result.note
    assert bool(note) == bool(result.note)
    assert result.note in str(result).replace("\n  ", " ")


def test_the_second_of_two_calls_and_what_a_method_returns_are_compared_as_well() -> None:
    calls = []

    def form(last: Any, *_: Any) -> Any:
        calls.append(last)
        return last * 1.5 if len(calls) % 2 == 0 else last

    def twice(model: Any, batch: Any) -> None:
        making_bert.call(model, batch)
        making_bert.call(model, batch)

    result = check(_around(form, call=twice), depth="screen")
    assert result.outcome == "pass"
    assert NOT_COMPARED.format("a tensor") in result.note
    for factor, outcome in ((1.0, "pass"), (1.5, "fail")):
        by_method = _around(lambda last, *_, factor=factor: last * factor, call=lambda model, batch: model.encode(batch.filled()))
        assert check(by_method, depth="screen").outcome == outcome


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, "pass"), (1.5, "fail")])
def test_what_a_module_returns_while_gradients_are_recorded_is_compared_as_well(
    factor: float, outcome: str, mapped: TorchImplementation
) -> None:
    def scale() -> float:
        return factor if torch.is_grad_enabled() else 1.0

    by_name, unnamed = _changed(mapped, lambda states, _: states[-1] * scale()), _around(lambda last, *_: last * scale())
    assert check(unnamed, depth="screen").outcome == "pass"
    for candidate in (by_name, unnamed):
        result = check(candidate, check="gradients", depth="screen")
        assert result.outcome == outcome, str(result)
        assert (ANOTHER in result.reason) == (outcome == "fail")


def test_hidden_states_that_are_not_exposed_are_named_and_do_not_fail_and_a_wrong_tensor_beside_the_right_one_does() -> None:
    shown = {key: value for key, value in making_bert.activations.items() if "embedding" not in str(key)}
    result = check(_around(lambda last, embeddings, _: (embeddings, last), shown=shown), depth="screen")
    assert result.outcome == "pass"
    assert NOT_COMPARED.format("[0]") in result.note
    wrong = check(_around(lambda last, *_: {"last": last * 1.5, "states": (last,)}), depth="screen")
    assert wrong.outcome == "fail"
    assert ANOTHER in wrong.reason
