"""Layers that are run in the wrong order are one origin, whatever fails in consequence."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from conformance import TorchImplementation, check, load_golden
from conformance.mapping.mapped import implementation_of
from conformance.model.activations import is_layer_output
from conformance.tests.third_party_models import proposal


def _running(order: Sequence[int]) -> TorchImplementation:
    """Return a correct implementation whose first layers are run in another order."""
    right = implementation_of(proposal("annotated:AnnotatedBert"))

    def call(model: Any, batch: Any) -> Any:
        layers = dict(model.layers._modules)
        model.layers._modules = {str(i): layers[str(i)] for i in order} | layers
        try:
            return right.call(model, batch)
        finally:
            model.layers._modules = layers

    return replace(right, call=call)


@pytest.mark.landing({"kind": "values"}, golden="tiny")
@pytest.mark.parametrize("kind", ["values", "outputs"])
@pytest.mark.parametrize(
    ("golden", "order", "sentence"),
    [
        ("tiny", (1, 0), "layers 0 and 1 are run in the order 1, 0"),
        ("deep", (0, 2, 1), "layers 1 and 2 are run in the order 2, 1"),
        ("deep", (3, 0, 2, 1), "layers 0 to 3 are run in the order 3, 0, 2, 1"),
    ],
)
def test_layers_in_the_wrong_order_are_one_origin(golden: str, order: Sequence[int], sentence: str, kind: str) -> None:
    result = check(_running(order), golden, check=kind, depth="full" if golden == "tiny" else "screen")
    assert result.outcome == "fail"
    if kind == "values" or golden == "tiny":  # the outputs alone do not show the order of layers before the last
        batches = {v.batch for v in result.verdicts}
        assert [v.reason for v in result.origins] == [sentence] * len(batches)
        assert all(is_layer_output(v.activation) for v in result.origins)
        assert not any(f.name for f in result.findings)


def test_layers_in_order_are_judged_as_before() -> None:
    assert check(_running((0, 1)), depth="screen").outcome == "pass"


def test_activations_that_an_adaptor_yields_late_are_one_origin_that_names_both_causes() -> None:
    right = implementation_of(proposal("annotated:AnnotatedBert"))

    def outputs_first(*arguments: Any) -> Any:
        """Yield the outputs of all layers before the activations inside the first."""
        runner = right.prepare(*arguments)

        def is_late(item: tuple[str, Any]) -> bool:
            return item[0].startswith("encoder.layer.0.") and not is_layer_output(item[0])

        return lambda batch: sorted(runner(batch), key=is_late)

    result = check(outputs_first, load_golden("tiny"), depth="screen")
    assert [v.reason for v in result.origins] == [
        "computed after layer 1's output; if the adaptor yields activations in the order of computation, the layers are run in the "
        "wrong order"
    ] * len({v.batch for v in result.verdicts})
