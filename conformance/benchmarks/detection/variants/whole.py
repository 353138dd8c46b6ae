"""Variants of the embeddings, the pooler, the losses, the batch, the format of all steps, and the exposed activations."""

from collections.abc import Mapping
from zlib import crc32

from conformance.benchmarks.detection.batching import in_order, row_by_row, unpadded
from conformance.benchmarks.detection.rewritten import ends, places
from conformance.benchmarks.detection.variant import HALVES_AND_FLOAT32, Variant, changed
from conformance.model.architecture import Architecture


def _has_logits(a: Architecture) -> bool:
    return bool(a.heads)


def _is_logits(name: str) -> bool:
    return name.endswith(("decoder", "seq_relationship", "log_probs", "classifier"))


def _is_norm(name: str) -> bool:
    return name.endswith("LayerNorm")


def _is_one_of_two(name: str) -> bool:
    return crc32(name.encode()) % 2 == 0 or name.endswith("output.LayerNorm")


WHOLE: Mapping[str, Variant] = {
    "look-ups as products": changed(places.lookups(ends.one_hot)),
    "look-ups by index_select": changed(
        places.lookups(lambda table, rows: table.index_select(0, rows.flatten()).view(*rows.shape, -1))
    ),
    "sinusoids in float32": changed(ends.float32_sinusoids, dtypes=HALVES_AND_FLOAT32),
    "pooler of the whole sequence": changed(ends.pooled_everywhere),
    "losses by hand": changed(ends.losses_by_hand),
    "losses of one-hot labels": changed(ends.losses_of_one_hot_labels),
    # the batch
    "one sequence at a time": Variant(arranged=row_by_row),
    "sequences in reverse order": Variant(arranged=in_order(lambda size: range(size - 1, -1, -1))),
    "every sequence twice": Variant(arranged=in_order(lambda size: [*range(size), *range(size)])),
    "without padding": Variant(arranged=unpadded),
    "padding zeroed": changed(ends.padding_zeroed),
    # formats and exposed activations
    "everything in float32, rounded when shown": Variant(computes="float32", dtypes=HALVES_AND_FLOAT32),
    "everything in float64, rounded when shown": Variant(computes="float64"),
    "residuals in float32": changed(ends.float32_residuals),
    "norms only": Variant(exposes=_is_norm),
    "about half of the activations": Variant(exposes=_is_one_of_two),
    "the last hidden state only": Variant(last_only=True),
    "logits only": Variant(exposes=_is_logits, suits=_has_logits),
    "computed in float64, logits only": Variant(exposes=_is_logits, computes="float64", suits=_has_logits),
}
