"""The golden `tanh`: GELU in its tanh form, as later checkpoints have it; a wrong constant in that form shows nowhere else."""

from conformance.goldens import tiny
from conformance.goldens.batches import batch, drawn
from conformance.goldens.recipe import Generated
from conformance.model.batch import Batch

ARCHITECTURE = tiny.ARCHITECTURE.with_(hidden_act="gelu_new", type_vocab_size=3)

_MASKS = ("111111111111", "111111110000", "001111111111", "110111011010")


def _batches(seed: int) -> dict[str, Batch]:
    return {"padded": batch(seed, ARCHITECTURE, drawn(_MASKS))}


RECIPE = Generated("tanh", ARCHITECTURE, _batches, kept=("LayerNorm", "decoder", "seq_relationship", "classifier", "loss"))
