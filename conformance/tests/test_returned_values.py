"""A module that computes every layer and returns another tensor does not conform, whether or not its adaptor returns the output."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from conformance import TorchImplementation, check
from conformance.cli import main
from conformance.implementations.making_bert import build, making_bert
from conformance.mapping.implementation import implementation_of
from conformance.mapping.mapped import proposed
from conformance.tests.third_party_models import STRANGERS, proposal, stranger

_PACKED: Any = stranger("packed:PackedBert")
LAST = "encoder.layer.1.output.LayerNorm"


def _returning(change: Callable[[Any, Any], Any], **more: Any) -> TorchImplementation:
    """Return the implementation of a correct model with the adaptor that `map` writes, whose forward returns what `change` does.

    `change` receives the module's result and its first layer's output.
    """

    class Changed(_PACKED):
        def __init__(self, ntoken, d_model, nlayers, nhead, dim_feedforward, max_seq_len) -> None:  # type: ignore[no-untyped-def]
            super().__init__(ntoken, d_model, nlayers, nhead, dim_feedforward, max_seq_len)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            first: list[Any] = []
            handle = self.trunk.layers[0].register_forward_hook(lambda _m, _i, out: first.append(out))
            try:
                return change(super().forward(*args, **kwargs), first)
            finally:
                handle.remove()

    right = implementation_of(proposed(_PACKED, "PackedBert", "home"))
    return replace(right, build=lambda a: _built(Changed, a), **more)


def _built(kind: Any, a: Any) -> Any:
    sizes = (a.vocab_size, a.hidden_size, a.num_hidden_layers, a.num_attention_heads, a.intermediate_size)
    return kind(*sizes, a.max_position_embeddings)


def _whole(result: Any, first: Any) -> Any:
    return result


def _early(result: Any, first: Any) -> Any:
    return first[0].transpose(0, 1), result[1]


def _shortened(result: Any, first: Any) -> Any:
    return result[0][:, 1:], result[1]


def _scaled(result: Any, first: Any) -> Any:
    return result[0] * 1.5, result[1]


def _called_without_returning(model: Any, batch: Any) -> None:
    batch = batch.filled()
    model(batch.input_ids, batch.token_type_ids, key_padding_mask=batch.attention_mask == 0)


@pytest.mark.parametrize("how", ["returned by name", "not returned"])
@pytest.mark.parametrize("change", [_early, _shortened, _scaled])
def test_a_module_that_returns_another_tensor_fails_with_that_reason(change: Any, how: str) -> None:
    more = {} if how == "returned by name" else {"call": _called_without_returning}
    result = check(_returning(change, **more), depth="screen")
    assert result.outcome == "fail"
    assert f"{LAST}: the module returns another tensor than its last layer computes" in result.reason


@pytest.mark.parametrize("more", [{}, {"call": _called_without_returning}])
def test_a_module_that_returns_its_last_hidden_state_conforms_and_it_is_judged_once(more: Any) -> None:
    result = check(_returning(_whole, **more), depth="screen")
    assert result.outcome == "pass", str(result)
    names = [v.activation for v in result.verdicts if v.activation == LAST]
    assert len(names) == len({v.batch for v in result.verdicts})


def test_padding_may_be_returned_with_other_values_and_no_other_position() -> None:
    factor = {}

    def zeroed(result: Any, first: Any) -> Any:
        return result[0] * factor["of positions"][..., None], result[1]

    right = _returning(zeroed)
    call = right.call

    def calling(model: Any, batch: Any) -> Any:
        factor["of positions"] = batch.filled().attention_mask.to(next(model.parameters()).dtype)
        return call(model, batch)

    assert check(replace(right, call=calling), depth="screen").outcome == "pass"

    def calling_wrongly(model: Any, batch: Any) -> Any:
        factor["of positions"] = 1 - batch.filled().attention_mask.to(next(model.parameters()).dtype)
        return call(model, batch)

    assert check(replace(right, call=calling_wrongly), depth="screen").outcome == "fail"


def test_the_backward_pass_of_a_module_whose_output_is_hooked_and_returned_is_judged() -> None:
    result = check(_returning(_whole), check="gradients", depth="screen")
    assert result.outcome == "pass", str(result)


def test_map_asks_about_a_module_that_returns_no_output() -> None:
    class Early(_PACKED):
        def forward(self, ids: Any, types: Any, *, key_padding_mask: Any) -> Any:
            first: list[Any] = []
            handle = self.trunk.layers[0].register_forward_hook(lambda _m, _i, out: first.append(out))
            super().forward(ids, types, key_padding_mask=key_padding_mask)
            handle.remove()
            return first[0].transpose(0, 1)

    found = proposed(Early, "Early", "home")
    assert found.open[-1] == (
        "the module returns encoder.layer.0.output.LayerNorm, and neither the last hidden state nor the pooled output nor logits"
    )


def test_a_wrong_result_is_mapped_by_its_shape_and_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = proposal("mistaken:LastNormBert")
    assert found.open == found.builder.open
    assert found.differs == ("encoder.layer.2.output.LayerNorm: the module computes something else there; `run` says what",)
    result = check(implementation_of(found), "deep", depth="screen")
    assert result.outcome == "fail"
    assert result.origins[0].activation == "encoder.layer.11.output.LayerNorm"
    name = f"{STRANGERS}.mistaken:LastNormBert"
    assert main(["map", name]) == 0
    assert "by its shape, which no value confirms  the module" in capsys.readouterr().out
    assert main(["new", str(tmp_path / "last-norm"), "--map", name]) == 0


def test_a_wrong_result_in_another_layout_is_mapped_by_its_shape() -> None:
    (output,) = proposal("mistaken:PositionsFirstBert").returned_outputs
    assert (output.arrangement, output.is_by_shape) == ("x.transpose(0, 1)", True)


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


_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda x: x,
    "tuple": lambda x: (x, None),
    "nested": lambda x: {"states": [{"last": x}]},
    "dataclass": _Output,
    "object": lambda x: SimpleNamespace(hidden=x),
    "slots": _Slots,
    "numpy": lambda x: [x.numpy()],
}
_LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "(S, B, H)": lambda x: x.transpose(0, 1),
    "(B, H, S)": lambda x: x.transpose(1, 2),
    "(B S, H)": lambda x: x.flatten(0, 1),
    "(S B, H)": lambda x: x.transpose(0, 1).flatten(0, 1),
    "(B, S H)": lambda x: x.flatten(1),
}
_FORMS = pytest.mark.parametrize("form", [*_CONTAINERS.values(), *_LAYOUTS.values()], ids=[*_CONTAINERS, *_LAYOUTS])


@_FORMS
def test_a_wrong_tensor_is_seen_in_any_container_and_layout(form: Any) -> None:
    result = check(_around(lambda last, *_: form(last * 1.5)), depth="screen")
    assert result.outcome == "fail"
    assert "the module returns another tensor than its last layer computes" in result.reason


@_FORMS
def test_the_last_hidden_state_is_recognized_in_any_container_and_layout(form: Any) -> None:
    result = check(_around(lambda last, *_: form(last)), depth="screen")
    assert (result.outcome, result.note) == ("pass", "")


def test_a_wrong_first_tensor_fails_beside_the_right_one() -> None:
    result = check(_around(lambda last, *_: {"last": last * 1.5, "states": (last,)}), depth="screen")
    assert result.outcome == "fail"
    assert "the module returns another tensor than its last layer computes" in result.reason


@pytest.mark.parametrize(
    ("form", "tensor"),
    [
        (lambda last, *_: (last, {"pooled": last.mean(1)}), '[1]["pooled"]'),
        (lambda last, _, first: (last, first + 1), "[1]"),
        (lambda last, *_: _Output(last, [last, 2 * last]), ".others[1]"),
    ],
)
def test_a_pass_names_a_returned_tensor_of_an_outputs_shape_that_is_no_activation(form: Any, tensor: str) -> None:
    result = check(_around(form), depth="screen")
    assert result.outcome == "pass"
    assert f"not compared in the returned value: {tensor} of" in result.note


@pytest.mark.parametrize("form", [lambda *_: None, lambda last, *_: last.sum(), lambda last, *_: iter([last * 1.5])])
def test_a_pass_says_that_nothing_returned_could_be_compared(form: Any) -> None:
    result = check(_around(form), depth="screen")
    assert result.outcome == "pass"
    assert result.note == "the returned value was not compared: no tensor in it equals an exposed activation"
    assert result.note in str(result).replace("\n  ", " ")


@pytest.mark.parametrize(
    "form",
    [
        lambda last, embeddings, first: [embeddings, first, last],
        lambda last, embeddings, first: (last, torch.stack([embeddings, first, last])),
        lambda last, embeddings, first: (last[:, 0], torch.stack([embeddings, first, last], 1)),
    ],
)
def test_all_hidden_states_may_be_returned_with_the_last(form: Any) -> None:
    result = check(_around(form), depth="screen")
    assert (result.outcome, result.note) == ("pass", "")


def test_hidden_states_that_are_not_exposed_are_named_and_do_not_fail() -> None:
    shown = {key: value for key, value in making_bert.activations.items() if "embedding" not in str(key)}
    result = check(_around(lambda last, embeddings, _: (embeddings, last), shown=shown), depth="screen")
    assert result.outcome == "pass"
    assert "not compared in the returned value: [0] of" in result.note


def test_the_second_of_two_calls_is_compared_as_well() -> None:
    calls = []

    def form(last: Any, *_: Any) -> Any:
        calls.append(last)
        return last * 1.5 if len(calls) % 2 == 0 else last

    def twice(model: Any, batch: Any) -> None:
        making_bert.call(model, batch)
        making_bert.call(model, batch)

    result = check(_around(form, call=twice), depth="screen")
    assert result.outcome == "pass"
    assert "not compared in the returned value: a tensor of" in result.note


def test_what_a_method_of_the_module_returns_is_compared() -> None:
    class Encoding(_Around):
        def encode(self, batch: Any) -> Any:
            return self.forward(batch.input_ids, batch.token_type_ids, batch.attention_mask)

    for factor, outcome in ((1.0, "pass"), (1.5, "fail")):
        right = _around(lambda last, *_: last)
        result = check(
            replace(
                right,
                build=lambda a, factor=factor: Encoding(build(a), lambda last, *_: last * factor),
                call=lambda model, batch: model.encode(batch.filled()),
            ),
            depth="screen",
        )
        assert result.outcome == outcome, result.reason
