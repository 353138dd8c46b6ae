"""A mask read as a number of tokens: named wherever the mask contains more information, and correct where all padding is on the
right."""

from typing import Any

import numpy as np
import pytest

from conformance import check, golden_of, load_golden
from conformance.model.batch import Batch
from conformance.numerics.formats import Array
from conformance.oracle import Network

TINY = load_golden("tiny")
CHECKPOINT = TINY.checkpoint
RAGGED = TINY.batches["padded"]
LAST = f"encoder.layer.{CHECKPOINT.architecture.num_hidden_layers - 1}.output.LayerNorm"


def _first(mask: Array) -> Array:
    """Return a mask with as many ones as the row has, from the first position on."""
    return np.asarray(np.arange(mask.shape[1]) < mask.sum(1, keepdims=True))


class LengthsAlone:
    """The oracle as a runtime that accepts lengths instead of masks; `behind` says which values it leaves at positions taken for
    padding."""

    evaluation_only = True

    def __init__(self, shown: tuple[str, ...], behind: str = "computed") -> None:
        self.shown, self.behind = shown, behind

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        def run(given: Any) -> Any:
            filled = given.filled().numpy()
            first = _first(np.asarray(filled.attention_mask))
            batch = Batch(filled.input_ids, filled.token_type_ids, first.astype(np.int64))
            network = Network(checkpoint.architecture, dict(checkpoint.weights), batch)
            for name, value in network.walk():
                if name.endswith(self.shown):
                    yield name, self._filled(value, first).astype(dtype)

        return run

    def _filled(self, value: Array, first: Array) -> Array:
        if self.behind == "computed" or value.shape[:2] != first.shape:
            return value
        last = value[np.arange(len(value)), first.sum(1) - 1][:, None]
        return np.where(first[:, :, None], value, last)


@pytest.mark.parametrize(
    ("shown", "behind"),
    [((".probs", ".output.LayerNorm"), "computed"), ((LAST,), "computed"), ((LAST,), "as the last token")],
)
def test_the_mistake_is_named_in_every_layer_also_from_few_outputs(shown: tuple[str, ...], behind: str) -> None:
    result = check(LengthsAlone(shown, behind), "tiny")
    assert [f.name for f in result.findings] == ["mask-as-lengths"]
    assert "every layer, attention.self.probs: the mask is read as a number of tokens" in str(result)


def test_a_runtime_of_lengths_conforms_where_all_padding_is_on_the_right() -> None:
    mask = _first(np.asarray(RAGGED.mask)).astype(np.int64)
    right = golden_of("at the right", CHECKPOINT, {"right": Batch(RAGGED.input_ids, RAGGED.token_type_ids, mask)})
    assert check(LengthsAlone((LAST,)), right).outcome == "pass"
