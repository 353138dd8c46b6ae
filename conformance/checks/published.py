"""A comparison with values that others have published for well-known checkpoints; it runs if such a checkpoint is given.

A number printed to d digits has an error of up to half a unit in its last digit. In addition, the candidate and the program whose
values were printed both have random errors that rounding accumulates from the token ids on (`judge.global_error`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conformance.candidates.registry import Implementation, load_implementation, name_of
from conformance.checks.candidate_device import functions_of
from conformance.checks.catalogue import PUBLISHED
from conformance.checks.trace import record
from conformance.errors import CandidateError
from conformance.goldens.custom_golden import golden_of
from conformance.goldens.golden import Golden
from conformance.judge.global_error import reference
from conformance.model.batch import Batch
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.numerics.thresholds import max_threshold, sidak_share
from conformance.oracle import Network
from conformance.results.candidate_time import timed
from conformance.results.case import Case
from conformance.results.result import Result
from conformance.results.termination import Termination, run_guarded


@dataclass(frozen=True)
class Published:
    """The published values of a slice of one activation.

    Attributes:
        checkpoint: the name of the checkpoint's directory, or of a Hugging Face hub folder above it.
        sizes: the sizes that the architecture must have, by attribute.
        batch: the inputs.
        activation, first: the name of the activation, and the index at which the slice begins.
        values: the values as printed.
        digits: the number of digits after the decimal point.
        source: where the values were published.
    """

    checkpoint: str
    sizes: Mapping[str, int]
    batch: Batch
    activation: str
    first: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    digits: int
    source: str


BERT_BASE_UNCASED = Published(
    checkpoint="bert-base-uncased",
    sizes={"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    batch=Batch.of(
        {
            "input_ids": [[0, 345, 232, 328, 740, 140, 1695, 69, 6078, 1588, 2]],
            "attention_mask": [[0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]],
        }
    ),
    activation="encoder.layer.11.output.LayerNorm",
    first=(0, 1, 1),
    values=((0.4249, 0.1008, 0.7531), (0.3771, 0.1188, 0.7467), (0.4152, 0.1098, 0.7108)),
    digits=4,
    source="transformers, tests/models/bert/test_modeling_bert.py, test_inference_no_head_absolute_embedding",
)

KNOWN = (BERT_BASE_UNCASED,)


def published_of(golden: Golden, known: tuple[Published, ...] = KNOWN) -> Published | None:
    """Return the published values of a golden's checkpoint, matched by its directory (or hub folder) and sizes, or None."""
    *above, last = Path(golden.origin.removeprefix("checkpoint:")).parts or ("",)
    hub = [part.split("--")[-1] for part in above if part.startswith("models--")]
    for published in known:
        named = published.checkpoint in (last, *hub)
        a = golden.checkpoint.architecture if named else None
        if a and all(getattr(a, size) == value for size, value in published.sizes.items()):
            return published
    return None


def check_published(
    implementation: object,
    golden: Golden,
    published: Published,
    device: str,
    dtype: str,
    runs: int = 1,
    load: Callable[[Any], Implementation] = load_implementation,
) -> Result:
    """Judge whether a candidate reproduces the published values and return the result; no exception is raised.

    The false-alarm probability is shared among `runs` such calls; `load` returns the candidate for a name or an object.
    """
    case = Case(name_of(implementation), golden.name, device, dtype, PUBLISHED)

    def judged() -> Termination:
        _require(load(implementation), golden, published, device, dtype, sidak_share(runs))
        return Termination("pass")

    def result() -> Result:
        termination = run_guarded(judged)
        return termination.result(case, executed=termination.is_judged)

    return timed(result)


def _require(implementation: object, golden: Golden, published: Published, device: str, dtype: str, alpha: float) -> None:
    subject = golden_of(golden.name, golden.checkpoint, {"published": published.batch})
    found = record(implementation, subject, device, dtype).activations["published"]
    if published.activation not in found:
        raise CandidateError(f"{published.activation} is not exposed, of which values are published")
    printed = np.array(published.values)
    where: Any = (*published.first[:-2], *(slice(f, f + n) for f, n in zip(published.first[-2:], printed.shape, strict=True)))
    network = Network(golden.checkpoint.architecture, golden.checkpoint.weights, published.batch)
    model = representative_hypothesis(dtype, device, functions_of(implementation, device)).arithmetic
    sigma = next(s for name, _, s in reference(network, model) if name == published.activation)
    accumulated = np.broadcast_to(sigma, found[published.activation].shape)[where]
    room = 0.5 * 10.0**-published.digits + max_threshold(printed.size, alpha) * np.sqrt(2.0) * accumulated
    difference = np.abs(found[published.activation][where] - printed)
    if (difference > room).any():
        i = np.unravel_index(int((difference / room).argmax()), difference.shape)
        at = [*published.first[:-2], *(f + int(k) for f, k in zip(published.first[-2:], i, strict=True))]
        value = found[published.activation][where][i]
        raise CandidateError(
            f"{published.activation}{at} is {value:.6f}, published is {printed[i]:.{published.digits}f} ± {room[i]:.1e} "
            f"({published.source})"
        )
