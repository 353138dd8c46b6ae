"""Networks with `Dense` modules of sentence-transformers behind their pooling; none of the stored goldens has any."""

from conformance import Checkpoint, Golden, golden_of, load_golden
from conformance.goldens.discriminating import weights
from conformance.model.dense import Dense

_TINY = load_golden("tiny")
_SEED = 7

ARCHITECTURE = _TINY.checkpoint.architecture.with_(num_hidden_layers=1, heads=(), pooler=False, pooling="mean")
"""Without any dense layer yet."""

WIDTH = ARCHITECTURE.hidden_size
TANH, PLAIN = Dense(WIDTH, activation="tanh"), Dense(WIDTH, bias=False)
"""Layers of the hidden state's own width, so that a network runs without them."""


def network(*dense: Dense, normalize: bool = False) -> Golden:
    """A network of one layer with these modules behind its mean, on the batches of `tiny`."""
    a = ARCHITECTURE.with_(dense=dense, normalize=normalize)
    return golden_of("dense", Checkpoint(a, weights(_SEED, a)), _TINY.batches)
