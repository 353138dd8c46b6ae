"""Runs of correct candidates under other settings of the machine, and reduced precision, which is recognised as such."""

import re
from typing import Any

import pytest

from conformance import Checkpoint, Result, check
from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.faults.precision import TF32_BITS

GOLDEN = "tiny"
NOISE = re.compile(r"as large as rounding to ([\d.]+) significant bits would leave$")
NARROWER = re.compile(r"^as much as computing in b?float16 would leave")


def _is_of_reduced_precision(result: Result) -> bool:
    """Return whether each origin is named so, or described as noise of as few bits or as large as a half format's."""
    for origin in result.origins:
        names = [fault.name for fault in origin.local.named] if origin.local else []
        bits = [float(noise[1]) for sentence in origin.residual_description if (noise := NOISE.search(sentence))]
        described = any(count <= TF32_BITS for count in bits) or any(map(NARROWER.match, origin.residual_description))
        if not (all(name.startswith("precision-") for name in names) if names else described):
            return False
    return result.outcome == "fail"


class Hidden:
    """A candidate that shows only its last layer's output."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        runner = self.candidate.prepare(checkpoint, device, dtype)
        return lambda batch: {name: x for name, x in dict(runner(batch)).items() if name == "encoder.layer.1.output.LayerNorm"}


@pytest.mark.parametrize(("plant", "reduced"), [("precision-bfloat16", True), ("gelu-variant", False), ("epsilon", False)])
def test_noise_of_hidden_products_is_recognised_as_reduced_precision_and_a_mistake_is_not(plant: str, reduced: bool) -> None:
    result = check(Hidden(Candidate([MISTAKES[plant].at(layer) for layer in range(2)])), GOLDEN, dtype="float32")
    assert (result.outcome, _is_of_reduced_precision(result)) == ("fail", reduced)
