"""How a network is trained: the settings of optimizer and schedule, and the table of a run of optimizer steps.

Step t takes the parameters θ from t − 1 to t (Kingma and Ba 2015, algorithm 1; decoupled decay: Loshchilov and Hutter 2019,
algorithm 2), with the gradient g clipped by the global norm ‖g‖ over all parameters (Pascanu et al. 2013, section 3.2):

    g ← g · min(1, c / ‖g‖)
    m ← β₁ m + (1 − β₁) g,  v ← β₂ v + (1 − β₂) g²
    θ ← θ − η (m̂ / (√v̂ + ε) + λ θ),  m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ)

BERT's own Adam leaves m and v as they are, without bias correction (google-research/bert, optimization.py). λ is 0 for biases and
for the parameters of LayerNorms.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from conformance.errors import UsageError
from conformance.model.activation import SCALAR, Activation
from conformance.model.gradients import grad

SCHEDULES = ("linear", "inverse_sqrt", "bert")


@dataclass(frozen=True)
class Training:
    """Settings of optimizer and schedule, under the names of `transformers.TrainingArguments` where they exist.

    Attributes:
        learning_rate: the largest, at the end of the warm-up.
        adam_beta1, adam_beta2, adam_epsilon: as in the equations.
        weight_decay: λ, of what `decays`.
        max_grad_norm: c.
        lr_scheduler_type: `linear` or `inverse_sqrt`, as in transformers: after the warm-up η falls linearly to 0, or as 1/√t; or
            `bert`, as in google-research/bert: linearly to 0 as if from the first step on, so that it falls at once by
            warmup_steps / max_steps where the warm-up ends.
        warmup_steps: over which η rises linearly from 0, its value in the first step.
        max_steps: how many steps a run has.
        bias_correction: whether m and v are corrected.

    Example:
        >>> training = Training(learning_rate=1e-3, warmup_steps=2, max_steps=6)
        >>> [round(1e3 * training.rate(step), 3) for step in range(1, 7)]
        [0.0, 0.5, 1.0, 0.75, 0.5, 0.25]
        >>> training = Training(learning_rate=1e-3, warmup_steps=2, max_steps=6, lr_scheduler_type="bert")
        >>> [round(1e3 * training.rate(step), 3) for step in range(1, 7)]
        [0.0, 0.5, 0.667, 0.5, 0.333, 0.167]
    """

    learning_rate: float = 5e-5
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    lr_scheduler_type: str = "linear"
    warmup_steps: int = 10
    max_steps: int = 100
    bias_correction: bool = True

    def __post_init__(self) -> None:
        """Refuse a schedule that has no formula here; raises `UsageError`."""
        if self.lr_scheduler_type not in SCHEDULES:
            raise UsageError(f"lr_scheduler_type {self.lr_scheduler_type!r} has no formula here; known are {', '.join(SCHEDULES)}")
        if not 0 < self.warmup_steps < self.max_steps:
            raise UsageError(f"warmup_steps is {self.warmup_steps}, expected from 1 to max_steps − 1, {self.max_steps - 1}")

    def rate(self, step: int) -> float:
        """η in step 1, 2, …: that of transformers' schedulers, which count from 0."""
        before, warm = step - 1, self.warmup_steps
        if before < warm:
            return self.learning_rate * before / warm
        if self.lr_scheduler_type == "inverse_sqrt":
            return self.learning_rate * math.sqrt(warm / before)
        if self.lr_scheduler_type == "bert":
            return self.learning_rate * max(1.0 - before / self.max_steps, 0.0)
        return self.learning_rate * max(self.max_steps - before, 0) / (self.max_steps - warm)


STEPS = 4  # of a run of which all is judged: through the warm-up and beyond
WHOLE = 24  # steps of a whole schedule
_FEW = Training(learning_rate=1e-2, adam_epsilon=1e-3, weight_decay=1.0, max_grad_norm=0.1, warmup_steps=2, max_steps=6)
_MANY = replace(_FEW, warmup_steps=6, max_steps=WHOLE)
# Settings each of which shows: ε is of the size of the gradients, so that clipping changes the update, to which Adam is blind
# otherwise; η and η λ are larger than half an ulp of bfloat16; warm-up and decline are run through.
STEPPED: Mapping[str, Training] = {
    "linear": _FEW,
    "inverse_sqrt": replace(_FEW, lr_scheduler_type="inverse_sqrt"),
    "nothing to clip": replace(_FEW, max_grad_norm=1e3),
    "BERT's own": replace(_FEW, lr_scheduler_type="bert", bias_correction=False),
}
_LONG = replace(_FEW, learning_rate=1e-3, adam_epsilon=1.0, max_grad_norm=10.0, warmup_steps=10, max_steps=100)
# Whole runs whose loss is followed. Gradients are clipped at first and not in the end, so that one that is scaled shows. The batch
# is not learnt by heart, so that what goes wrong late shows as well: after the last step the loss is 0.16 on `tiny` and 4.3 on
# `sinusoidal`. In float32 rounding takes it apart by 2e-6 at most; with the rate and ε of `STEPPED`, where errors grow
# exponentially, by as much as the loss itself after 20 steps.
FOLLOWED: Mapping[str, Training] = {
    "linear": _LONG,
    "inverse_sqrt": replace(_LONG, lr_scheduler_type="inverse_sqrt"),
    "BERT's own": replace(_LONG, lr_scheduler_type="bert", bias_correction=False),
}
SCHEDULED: Mapping[str, Training] = {name: replace(_MANY, lr_scheduler_type=name) for name in SCHEDULES}


def decays(name: str) -> bool:
    """Whether weight decay is for a parameter: for matrices and tables, not for biases and norms (Devlin et al. 2019's code).

    Example:
        >>> decays("bert.pooler.dense.weight"), decays("bert.pooler.dense.bias"), decays("bert.embeddings.LayerNorm.weight")
        (True, False, False)
    """
    return not (name.endswith("bias") or ".LayerNorm." in name)


_ROW = re.compile(r"step\.\d+\..")


def at(step: int, name: str) -> str:
    """What something is called in a step of a run; parameters in step 0 are those before the first.

    Example:
        >>> at(2, "bert.pooler.dense.bias.grad")
        'step.2.bert.pooler.dense.bias.grad'
    """
    return f"step.{step}.{name}"


def is_of_a_run(name: str) -> bool:
    """Whether it is a row of a run."""
    return _ROW.match(name) is not None


def step_of(name: str) -> int:
    """The step that a row of a run belongs to."""
    return int(name.split(".", 2)[1])


def parameter_of(name: str) -> str:
    """The parameter, or its gradient, that a row of a run is."""
    return name.split(".", 2)[2]


# Kinds of rows.
INITIAL, GRADIENT, NORM, ADAM = "initial", "given_gradient", "gradient_norm", "adam"
GIVEN = (INITIAL, GRADIENT)  # that nothing is asked of: the others are judged from them


def run_table(shapes: Mapping[str, tuple[int, ...]], steps: int, judged: Collection[str]) -> dict[str, Activation]:
    """The rows of a run of optimizer steps, of parameters of these shapes.

    They are the parameters before it; then of each step the gradients, their norm, and the parameters after it: of those that are
    judged.
    """
    return {row.name: row for row in _rows(shapes, steps, {name: shape for name, shape in shapes.items() if name in judged})}


def _rows(shapes: Mapping[str, tuple[int, ...]], steps: int, judged: Mapping[str, tuple[int, ...]]) -> Iterator[Activation]:
    for name, shape in judged.items():
        yield parameter_row(at(0, name), INITIAL, (), shape, "the checkpoint's", {"weight": name})
    for t in range(1, steps + 1):
        for name, shape in shapes.items():
            yield parameter_row(at(t, grad(name)), GRADIENT, (), shape, "what the backward pass left", {"weight": name})
        gradients = tuple(at(t, grad(name)) for name in shapes)
        yield Activation(at(t, NORM), NORM, gradients, SCALAR, 0, "√Σ g² over all parameters", is_internal=True)
        for name, shape in judged.items():
            read = (at(t - 1, name), *(at(s, what) for what in (grad(name), NORM) for s in range(1, t + 1)))
            yield parameter_row(at(t, name), ADAM, read, shape, "θ − η (m̂ / (√v̂ + ε) + λ θ)", {})


def parameter_row(
    name: str,
    kind: str,
    parents: tuple[str, ...],
    shape: tuple[int, ...],
    equation: str,
    read: Mapping[str, str],
) -> Activation:
    """A row that has the shape of a parameter, of which nothing is computed where it has no parents."""
    *height, width = shape
    axes = ("row", "feature") if height else ("feature",)
    return Activation(name, kind, parents, axes, width, equation, read, exact=not parents, height=sum(height))
