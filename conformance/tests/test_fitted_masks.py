"""Fitted masks: each is the mask that the probabilities show, in encoders and decoders, and for masks with keys for each query."""

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
    """Return the fits, by name or by how many masks there are, that have the softmax over these keys at every judged query.

    They are in the order of their trial.
    """
    actual = softmax(step.parents[0], np.broadcast_to(keys, step.value.shape))
    judged = np.broadcast_to(_queries(step), actual.shape)
    data = FitData(actual, judged, np.full(actual.shape, 1e-9), 7.0)
    tried = [(fault.name, fault.fit(step, data)) for fault in FITTED if fault.is_possible_at("probs", PROBS)]
    each = [(name, one) for name, fit in tried if fit for one in (*fit.simpler, fit)]
    found = {fit.parameter.partition(",")[0] if fit.parameter.startswith("one") else name: fit for name, fit in each}
    return {name: fit for name, fit in found.items() if np.allclose(fit.step.value[judged], actual[judged], atol=1e-12)}


@of_networks
@of_masks
def test_a_mask_for_each_head_is_fitted_beside_any_mask_and_in_a_decoder(architecture: Architecture, mask: Array) -> None:
    step = _right(architecture, mask)
    found = _explaining(step, keys_of(step) & HEAD_KEYS)
    changed = keys_of(step) & ~HEAD_KEYS & _queries(step)
    assert found["one for each head"].free == changed.any(2).sum()


@of_networks
@of_masks
def test_the_numbers_of_a_mask_for_each_query_are_the_keys_that_it_changes(architecture: Architecture, mask: Array) -> None:
    step = _right(architecture, mask)
    keys = keys_of(step) & (DISTANCE != 1)
    changed = np.broadcast_to(keys != keys_of(step), (*keys.shape[:2], LENGTH, LENGTH)) & _queries(step)
    assert _explaining(step, keys)["one for each query"].free == changed.sum()


@pytest.mark.parametrize(("mask", "free"), [(PACKED, PACKED[:, 0].size), (PADDED, (PADDED == 0).sum())], ids=["packed", "padded"])
def test_the_numbers_of_one_mask_for_all_queries_are_the_tokens_whose_mask_changes_what_is_attended_to(
    mask: Array, free: Any
) -> None:
    found = _explaining(_right(ENCODER, mask), np.ones((1, 1, 1, LENGTH), np.bool_))
    assert found["mask-other"].free == free
    assert found["mask-other"].free <= found["one for each query"].free
