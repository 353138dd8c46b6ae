"""Goldens for what goes beyond an encoder's forward pass, and candidates of the `inner-workings` network with a planted mistake."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from conformance import Checkpoint, Golden, check, golden_of, load_golden
from conformance.goldens.generated_weights import weights
from conformance.implementations.inner_workings import inner_workings
from conformance.model.batch import Batch

RELATIVE = ("relative-key", "relative-key-query")
DECODERS = ("decoder", "cross-attention")
DTYPES = ("float64", "float32", "bfloat16")


def broken(change: Callable[[Any], None], **options: Any) -> Any:
    """Return the `inner-workings` candidate with a mistake planted in its module."""

    def build(a: Any) -> nn.Module:
        model = inner_workings.build(a)
        change(model.bert)
        return model

    return replace(inner_workings, build=build, name="broken", **options)


def in_attention(change: Callable[[Any], None], layer: int = 0, of: str = "attention") -> Any:
    """Plant a mistake in the self-attention of one layer."""
    return broken(lambda bert: change(getattr(bert.encoder.layer[layer], of).self))


def generated(of: str, arrays: dict[str, Any], **changes: Any) -> Golden:
    """Return a golden of one batch and a changed architecture of the golden `of`, with generated weights."""
    a = load_golden(of).checkpoint.architecture.with_(**changes)
    return golden_of("generated", Checkpoint(a, weights(7, a)), {"own": Batch.of(arrays)})


def named(candidate: Any, golden: Any, name: str, layer: int = 0, **options: Any) -> None:
    """Assert that the candidate fails, that the first origin is in that layer, and that the fault of that name is found there."""
    result = check(candidate, golden, **options)
    assert result.outcome == "fail", result
    assert all(f"layer.{layer}." in v.activation for v in result.origins), [v.activation for v in result.origins]
    assert any(name == finding.name for finding in result.findings), str(result)
