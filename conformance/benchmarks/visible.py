"""The smallest error of a part of an activation that is seen, at each depth: `python -m conformance.benchmarks.visible`.

The candidate is Hugging Face's BERT of base width with one layer (batch 8, length 128, float32), correct but for an error that is
added to one element, token, feature, head or position of one activation, in the sigma of each element and beyond its deterministic
bound, or for one weight or bias of a linear layer, relative to its size. Errors of powers of two from 1/16 to 2^17 times the unit
are tried. Filters see a mistake that they are made for earlier; they are not counted.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from conformance.benchmarks.harness import parser, publish, table
from conformance.benchmarks.subject import Subject
from conformance.judge.judge import tests_of
from conformance.judge.local_error import judge_locally, screened_exactly
from conformance.judge.observation import Observation
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import Array
from conformance.numerics.thresholds import sidak_share

PAGE = Path(__file__).with_name("VISIBLE.md")
LAYER = "encoder.layer.0."
SIZES = tuple(2.0**n for n in range(-4, 18))
PLACES: Mapping[str, tuple[str, Any]] = {
    "element of a linear layer": ("intermediate.dense", (1, 20, 5)),
    "element of a LayerNorm": ("output.LayerNorm", (1, 20, 5)),
    "element of GELU": ("intermediate.intermediate_act_fn", (1, 20, 5)),
    "probability": ("attention.self.probs", (1, 2, 20, 5)),
    "element of the context": ("attention.self.context", (1, 20, 5)),
    "token of a linear layer": ("intermediate.dense", (1, 20)),
    "feature of a linear layer": ("intermediate.dense", (slice(None), slice(None), 5)),
    "position of a linear layer": ("intermediate.dense", (slice(None), 20)),
    "head of the context": ("attention.self.context", (slice(None), slice(None), slice(0, 64))),
}


def seen_from(observation: Observation, error: Array, *, gated: bool, bound: Array | float = 0.0) -> float:
    """Return the smallest of `SIZES` times which an error, and a bound, make an activation fail; infinite if there is none."""
    legal, alpha = hypotheses("float32"), sidak_share(tests_of(observation.network))

    def fails(by: float) -> bool:
        actual: Any = (observation.actual + by * error + bound).astype(np.float32)
        spoilt = Observation(observation.network, observation.name, actual, observation.captured)
        screen = partial(judge_locally, depth="screen") if gated else screened_exactly
        return not any(local.passes for local in screen(spoilt, legal, alpha))

    return (*SIZES, math.inf)[bisect_left(SIZES, True, key=fails)]


def observations() -> Mapping[str, Observation]:
    """Return the activations of the layer."""
    subject, seen, found = Subject(1), dict[str, Any](), {}
    for name, value in subject.results():
        found[name.removeprefix(LAYER)] = Observation(subject.network, name, value.numpy(), dict(seen))
        seen[name] = value.numpy()
    return found


def rows() -> Iterator[tuple[object, ...]]:
    """Yield the part, its unit and the smallest visible error at each depth."""
    every = observations()
    for part, (name, at) in PLACES.items():
        observation, (error, bound) = every[name], np.zeros((2, *every[name].actual.shape))
        noise = observation.whole.noise(hypotheses("float32")[0])
        error[at], bound[at] = noise.sigma[at], np.broadcast_to(noise.bound, error.shape)[at]
        yield part, "σ", *(f"{seen_from(observation, error, gated=gated, bound=bound):g}" for gated in (True, False))
    dense = every["intermediate.dense"]
    (inputs,) = (dense.captured[parent] for parent in dense.activation.parents)
    parameters = dense.network.site(dense.name).parameters
    for part, change in (("weight", inputs[..., 7] * parameters["weight"][5, 7]), ("bias", parameters["bias"][5])):
        error = np.zeros(dense.actual.shape)
        error[..., 5] = change * 2.0**-24
        yield f"{part} of a linear layer", "2⁻²⁴ of it", *(f"{seen_from(dense, error, gated=gated):g}" for gated in (True, False))


def main() -> None:
    """Measure and print the table; `--write` also saves it."""
    chosen = parser(__doc__, PAGE, parallel=False).parse_args()
    publish(
        PAGE, "The smallest visible error", table(("part", "unit", "screen and full", "exhaustive"), rows()), write=chosen.write
    )


if __name__ == "__main__":
    main()
