"""Correct backward passes of a network of base size, none of which may fail.

The network has width 768, 12 layers, 12 heads, a vocabulary of 1000 tokens, the pre-training heads and a classifier. The batch has
two sequences of 32 tokens, one of them half padding. It is judged in float32 at depth screen: RMS and largest error, without the
filters of mistakes.

    python -m conformance.benchmarks.gradients.base_size
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance import Golden, golden_of
from conformance.benchmarks.gradients.correct import CORRECT
from conformance.benchmarks.subject import LAYERS, network
from conformance.checks.backward_passes import backward_passes
from conformance.checks.check_values import check_values
from conformance.goldens.batches import batch
from conformance.goldens.recipe import SEED
from conformance.implementations.hugging_face import hf_eager, hf_sdpa
from conformance.implementations.inner_workings import inner_workings
from conformance.implementations.making_bert import making_bert
from conformance.implementations.torch_encoder import torch_encoder
from conformance.model.checkpoint import Checkpoint

LENGTH, VOCABULARY = 32, 1000
IN_USE: tuple[Any, ...] = (hf_eager, hf_sdpa, making_bert, inner_workings, torch_encoder)


def golden(layers: int = LAYERS) -> Golden:
    """Return the network and its batch as a golden."""
    checkpoint, _ = network(layers, vocab_size=VOCABULARY, heads=("masked_lm", "next_sentence", "classification"), num_labels=2)
    mask = np.ones((2, LENGTH), np.int64)
    mask[1, LENGTH // 2 :] = 0
    given = batch(SEED, checkpoint.architecture, mask)
    ids = np.maximum(given.input_ids, 1)  # Id 0 is padding, for which some embeddings have no gradient.
    return golden_of("base", Checkpoint(checkpoint.architecture, checkpoint.weights), {"two": replace(given, input_ids=ids)})


def candidates() -> Iterator[tuple[str, Any]]:
    """Yield the candidates in use, then the variants that compute in the format that they show."""
    yield from ((each.name, each) for each in IN_USE)
    yield from ((name, each) for name, each in CORRECT.items() if "float32" in each.variant.dtypes and not each.variant.computes)


def main() -> None:
    """Print one line per candidate, and the totals."""
    base, tensors, failed, count = golden(), 0, 0, 0
    for name, candidate in candidates():
        result = check_values(candidate, base, passes=backward_passes, depth="screen")
        judged = sum(verdict.outcome in ("pass", "fail") for verdict in result.verdicts)
        count, tensors, failed = count + (judged > 0), tensors + judged, failed + (result.outcome == "fail")
        print(f"{name}: {result.outcome}, {judged} tensors{'; ' + result.reason if result.reason else ''}", flush=True)
    print(f"{count} candidates, {tensors} tensors, {failed} false alarms")


if __name__ == "__main__":
    main()
