"""A module that computes every layer and returns another tensor does not conform, whether or not its adaptor returns the output."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance import TorchImplementation, check
from conformance.cli import main
from conformance.mapping.mapped import implementation_of, proposed
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
