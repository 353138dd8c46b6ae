"""Fitted masks: each is the mask that the probabilities show, in encoders and decoders, and for masks with keys for each query.

The number of keys that a product with the probabilities does not read is found from judged queries and from every head.
"""

from typing import Any

import numpy as np
import pytest

from conformance import Architecture
from conformance.faults.attention import keys_of, softmax
from conformance.faults.fitted import FITTED, Fit, FitData
from conformance.numerics.formats import Array, Mask
from conformance.oracle import Step
from conformance.tests.test_faults_of_masks import DECODER, ENCODER, LENGTH, PACKED, PADDED, PROBS, _network, _step

HEADS = ENCODER.num_attention_heads
POSITIONS = np.arange(LENGTH)
DISTANCE = np.abs(POSITIONS[:, None] - POSITIONS)
HEAD_KEYS = np.arange(2, 2 + HEADS)[:, None, None] != POSITIONS  # (h, 1, S): each head leaves out a key of its own.

of_networks = pytest.mark.parametrize("architecture", [ENCODER, DECODER], ids=["encoder", "decoder"])
of_masks = pytest.mark.parametrize("mask", [PACKED, PADDED], ids=["packed", "padded"])


def _right(architecture: Architecture, mask: Array) -> Step:
    return _step(*_network(architecture, attention_mask=mask), PROBS)


def _queries(step: Step) -> Mask:
    """Return the queries that are judged, (B, 1, S, 1)."""
    return step.site.batch.mask[:, None, :, None]


def _explaining(step: Step, keys: Mask) -> dict[str, Fit]:
    """Return the fits, by name, that have the softmax over these keys at every judged query, in the order of their trial."""
    actual = softmax(step.parents[0], np.broadcast_to(keys, step.value.shape))
    judged = np.broadcast_to(_queries(step), actual.shape)
    data = FitData(actual, judged, np.full(actual.shape, 1e-9), 7.0)
    tried = [(fault.name, fault.fit(step, data)) for fault in FITTED if fault.is_possible_at("probs", PROBS)]
    found: dict[str, Fit] = {name: fit for name, fit in tried if fit}
    return {name: fit for name, fit in found.items() if np.allclose(fit.step.value[judged], actual[judged], atol=1e-12)}


@of_networks
@of_masks
@pytest.mark.parametrize(("keys", "name", "value"), [(DISTANCE <= 1, "mask-window", 1), (POSITIONS < 3, "keys-last-hidden", 3)])
def test_a_window_and_hidden_last_keys_have_their_names_beside_any_mask_and_in_a_decoder(
    keys: Mask, name: str, value: float, architecture: Architecture, mask: Array
) -> None:
    step = _right(architecture, mask)
    first, *_ = _explaining(step, keys_of(step) & keys).items()
    assert (first[0], first[1].value) == (name, value)


def test_a_row_without_any_probability_is_no_evidence_that_its_keys_are_hidden() -> None:
    step = _right(ENCODER, np.array([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]]))
    of_first_row = np.arange(2)[:, None, None, None] == 0
    assert "keys-last-hidden" not in _explaining(step, keys_of(step) & of_first_row)


@of_networks
@of_masks
def test_a_mask_for_each_head_is_fitted_beside_any_mask_and_in_a_decoder(architecture: Architecture, mask: Array) -> None:
    step = _right(architecture, mask)
    found = _explaining(step, keys_of(step) & HEAD_KEYS)
    changed = keys_of(step) & ~HEAD_KEYS & _queries(step)
    assert found["mask-by-head"].free == changed.any(2).sum()


def test_masks_of_other_rows_for_heads_are_fitted() -> None:
    step = _right(ENCODER, PADDED)
    rows = (np.arange(2)[:, None] + np.arange(HEADS)) % 2
    assert "mask-by-head" in _explaining(step, PADDED[rows][:, :, None] > 0)


@of_networks
@of_masks
def test_the_numbers_of_a_mask_for_each_query_are_the_keys_that_it_changes(architecture: Architecture, mask: Array) -> None:
    step = _right(architecture, mask)
    keys = keys_of(step) & (DISTANCE != 1)
    changed = np.broadcast_to(keys != keys_of(step), (*keys.shape[:2], LENGTH, LENGTH)) & _queries(step)
    assert _explaining(step, keys)["mask-by-query"].free == changed.sum()


@pytest.mark.parametrize(("mask", "free"), [(PACKED, PACKED[:, 0].size), (PADDED, (PADDED == 0).sum())], ids=["packed", "padded"])
def test_the_numbers_of_one_mask_for_all_queries_are_the_tokens_whose_mask_changes_what_is_attended_to(
    mask: Array, free: Any
) -> None:
    found = _explaining(_right(ENCODER, mask), np.ones((1, 1, 1, LENGTH), np.bool_))
    assert found["mask-other"].free == free
    assert found["mask-other"].free <= found["mask-by-query"].free


def _unread(name: str, step: Step, unread: int, padded: float) -> float | None:
    """Return the number that is fitted to the context without the last keys, with this value at queries that are padding."""
    probs, value = step.parents
    judged = np.broadcast_to(step.site.batch.mask[..., None], step.value.shape)
    read = step.replaced(parents=(np.where(np.arange(probs.shape[-1]) < probs.shape[-1] - unread, probs, 0.0), value))
    (fault,) = (fault for fault in FITTED if fault.name == "keys-last-unread")
    assert fault.is_possible_at("context", name)
    fit = fault.fit(step, FitData(np.where(judged, read.value, padded), judged, np.full(judged.shape, 1e-9), 7.0))
    return fit and fit.value


def test_the_number_of_unread_keys_is_that_of_judged_queries_of_any_head_and_of_fewer_states_than_queries() -> None:
    context, crossed = PROBS.replace("probs", "context"), "encoder.layer.0.crossattention.self.context"
    step = _step(*_network(ENCODER, attention_mask=np.array([[0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]])), context)
    for padded in (0.0, 5.0, np.nan):
        unread = _unread(context, step, 2, padded)
        assert unread == 2
    step = _step(*_network(ENCODER, attention_mask=PADDED), context)
    probs, value = step.parents
    without_first_head = step.replaced(parents=(probs, value * (np.arange(value.shape[-1]) >= ENCODER.head_size)))
    unread = _unread(context, without_first_head, 3, 0.0)
    assert unread == 3
    step = _step(*_network(DECODER, attention_mask=PADDED), crossed)
    probs, value = step.parents
    unread = _unread(crossed, step.replaced(parents=(probs[..., :-2], value[:, :-2])), 2, 0.0)
    assert unread == 2
