"""Helpers that run the check `gradients` on a candidate built by a test."""

from collections.abc import Callable, Sequence
from typing import Any

from conformance import Checkpoint, Golden
from conformance.checks.backward_passes import gradients
from conformance.checks.check import Plan, Request
from conformance.checks.judgement import check_values
from conformance.checks.passes import Pass
from conformance.implementations.hugging_face import BertWithHeads, HuggingFace
from conformance.judge import Depth
from conformance.results.result import Result

Plant = Callable[[Any], None]


def judged(
    candidate: object, golden: str | Golden = "tiny", dtype: str = "float32", source: str = "", depth: Depth = "full"
) -> Result:
    """Run the check `gradients` from every source of the backward pass, or from one."""

    def passes(*asked: Any) -> Sequence[Pass]:
        return [one for one in gradients.function(*asked) if source in (one.network.source, "")]

    return check_values(Request.of(candidate, golden, dtype=dtype, plan=Plan(depth=depth)), passes)


def observed(result: Result) -> set[str]:
    return {v.activation for v in result.verdicts if v.outcome in ("pass", "fail")}


class Changed(HuggingFace):
    """Hugging Face's BERT, changed in a way that alters gradients only by rounding."""

    def __init__(self, plant: Plant, attention: str = "eager") -> None:
        super().__init__(attention)
        self.plant = plant

    def module(self, checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32") -> BertWithHeads:
        model = super().module(checkpoint, device, dtype)
        self.plant(model)
        return model
