"""Faults of relative positions: wrong look-ups of distances, and missing or misplaced terms of the scores."""

from collections.abc import Callable, Iterator

import numpy as np

from conformance.faults.altered import Altered
from conformance.faults.changes import rewritten, with_parent
from conformance.faults.fault import Change, Fault, FaultContext
from conformance.model.batch import Ids
from conformance.oracle import Step

_LOOKUP = "Look up E[i − j + P − 1] for query i and key j, P = max_position_embeddings."
_TERMS = "Add q_i · D_ij to q_i · k_j (with relative_key_query k_j · D_ij too), and divide the sum by √d."

LOOKUP, OF_QUERIES, OF_KEYS = (frozenset({kind}) for kind in ("distance_lookup", "query_distance_scores", "key_distance_scores"))

SHAW = 16  # The clipping distance k in the experiments of Shaw et al. 2018.


def _other_rows(f: Callable[[Ids, int], Ids]) -> Change:
    """Return the change that looks up the row of distance f(i − j, P) for distance i − j, clipped to the ends of the table."""

    def change(step: Step, _: FaultContext) -> Step:
        table = step.site.parameters["weight"]
        size = len(table) // 2 + 1  # P, of 2 P − 1 rows
        distances = np.arange(step.site.batch.length)
        distances = distances[:, None] - distances[None, :]
        rows = np.clip(f(distances, size) + size - 1, 0, len(table) - 1)
        return Altered(step, lambda inner: np.broadcast_to(table[rows], inner.value.shape))

    return change


_ABSENT = rewritten(lambda step: np.zeros_like(step.value))
_TRANSPOSED = rewritten(lambda step: step.value.swapaxes(-1, -2))


def _of_the_other(other: str) -> Change:
    """Return the change that multiplies the distances by the key in place of the query, or by the query in place of the key."""
    return lambda step, context: with_parent(step, context, step.site.activation.parents[0].rpartition(".")[0] + f".{other}")


# fmt: off
def faults() -> Iterator[Fault]:
    """Yield the faults of relative positions."""
    yield Fault("distance-sign", LOOKUP, "distances have the opposite sign: key position − query position", "constructed",
                _other_rows(lambda distances, _: -distances), "position_ids_r − position_ids_l",
                equation="D_ij = E[j − i + P − 1]", fix=_LOOKUP)
    yield Fault("distance-absolute", LOOKUP, "distances lose their sign", "constructed",
                _other_rows(lambda distances, _: np.abs(distances)), "a symmetric distance",
                equation="D_ij = E[|i − j| + P − 1]", fix=_LOOKUP)
    yield Fault("distance-clipped", LOOKUP, f"distances are clipped to ±{SHAW}", "constructed, after Shaw et al. 2018, section 3.2",
                _other_rows(lambda distances, _: np.clip(distances, -SHAW, SHAW)),
                "the paper's clipping, which BERT's table of 2P − 1 rows does not need",
                equation=f"D_ij = E[max(−{SHAW}, min(i − j, {SHAW})) + P − 1]", fix=_LOOKUP)
    yield Fault("distance-offset", LOOKUP, "distances are looked up one row too far", "constructed",
                _other_rows(lambda distances, _: distances + 1), "P for P − 1",
                equation="D_ij = E[i − j + P]", fix=_LOOKUP)
    yield Fault("distance-from-zero", LOOKUP, "distances are looked up from row 0 on, negative ones from the end", "constructed",
                _other_rows(lambda distances, size: distances % (2 * size - 1) - size + 1),
                "P − 1 not added, so that an index counts from the end",
                equation="D_ij = E[(i − j) mod (2P − 1)]", fix=_LOOKUP)
    yield Fault("distance-query-missing", OF_QUERIES, "the scores lack q_i · D_ij", "constructed", _ABSENT,
                "the scores computed as for absolute positions", equation="s_ij without q_i · D_ij", fix=_TERMS)
    yield Fault("distance-key-missing", OF_KEYS, "the scores lack k_j · D_ij", "constructed", _ABSENT,
                "relative_key_query taken as relative_key", equation="s_ij without k_j · D_ij", fix=_TERMS)
    yield Fault("distance-query-transposed", OF_QUERIES, "the scores have q_j · D_ji in place of q_i · D_ij", "constructed",
                _TRANSPOSED, "einsum indices l and r exchanged", equation="s_ij has q_j · D_ji", fix=_TERMS)
    yield Fault("distance-key-transposed", OF_KEYS, "the scores have k_i · D_ji in place of k_j · D_ij", "constructed",
                _TRANSPOSED, "einsum indices l and r exchanged", equation="s_ij has k_i · D_ji", fix=_TERMS)
    yield Fault("distance-of-keys", OF_QUERIES, "the distances are multiplied by the key, not the query, at position i",
                "constructed", _of_the_other("key"), "key_layer for query_layer",
                equation="s_ij has k_i · D_ij for q_i · D_ij", fix=_TERMS)
    yield Fault("distance-of-queries", OF_KEYS, "the distances are multiplied by the query, not the key, at position j",
                "constructed", _of_the_other("query"), "query_layer for key_layer",
                equation="s_ij has q_j · D_ij for k_j · D_ij", fix=_TERMS)
    yield Fault("distance-unscaled", OF_QUERIES | OF_KEYS, "the term of the distances is not divided by √d", "constructed",
                rewritten(lambda step: step.value * step.site.architecture.head_size**0.5), "added after the division",
                equation="s_ij = q_i · k_j / √d + q_i · D_ij", fix=_TERMS)
# fmt: on
