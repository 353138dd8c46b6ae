"""The runs given to every tool: the reference again, a correct run that computes differently, and two mistakes."""

from collections.abc import Iterator
from functools import partial

from torch.nn.functional import gelu

from conformance.benchmarks.subject import Subject
from conformance.goldens.golden import load_golden

LAYER = 1  # The layer with the mistakes.
# Real weights, to which tolerances chosen for other networks are applied, and generated weights, which every tool can use as well.
GOLDENS = ("minilm", "tiny")
NORM = f"encoder.layer.{LAYER}.attention.output.LayerNorm"
ACTIVATION = f"encoder.layer.{LAYER}.intermediate.intermediate_act_fn"


def subject(golden: str, attention: str = "eager") -> Subject:
    """Return Hugging Face's BERT with the golden's checkpoint and first batch."""
    loaded = load_golden(golden)
    return Subject(loaded.checkpoint, next(iter(loaded.batches.values())), attention)


def candidates(golden: str) -> Iterator[tuple[str, Subject, str | None]]:
    """Yield each candidate with its name, and the activation at which it first differs, or None if it is correct."""
    yield "repeated", subject(golden), None
    yield "SDPA", subject(golden, "sdpa"), None
    epsilon = subject(golden)
    epsilon.bert.get_submodule(NORM).eps = 1e-5
    yield "epsilon", epsilon, NORM
    tanh = subject(golden)
    # The module keeps its class, so that tools that match modules by class can match it.
    tanh.bert.get_submodule(ACTIVATION).act = partial(gelu, approximate="tanh")
    yield "tanh-GELU", tanh, ACTIVATION
