"""Training settings of the optimizer and the schedule, and the table of a run of optimizer steps.

Step t takes the parameters θ from t − 1 to t (Kingma and Ba 2015, algorithm 1; decoupled decay: Loshchilov and Hutter 2019,
algorithm 2), with the gradient g clipped by the global norm ‖g‖ over all parameters (Pascanu et al. 2013, section 3.2):

    g ← g · min(1, c / ‖g‖)
    m ← β₁ m + (1 − β₁) g,  v ← β₂ v + (1 − β₂) g²
    θ ← θ − η (m̂ / (√v̂ + ε) + λ θ),  m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ)

BERT's own Adam uses m and v without bias correction (google-research/bert, optimization.py). λ is 0 for biases and for the
parameters of LayerNorms.

The initial parameters of training: biases are 0, LayerNorm weights are 1, and matrices and tables are random.

Random values are drawn from N(0, r²), where r is the config's `initializer_range`: not truncated in transformers, truncated at
± 2 r in Google's code (Devlin et al. 2019's code). In transformers the embedding of padding, row 0, is then set to 0; in Google's
code it is random like all others.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from conformance.errors import UsageError
from conformance.model.activation import SCALAR, Activation
from conformance.model.activations import parameter_shapes
from conformance.model.architecture import Architecture
from conformance.model.gradients import grad

SCHEDULES = ("linear", "inverse_sqrt", "bert")


@dataclass(frozen=True)
class Training:
    """The settings of the optimizer and the schedule, under the names of `transformers.TrainingArguments` where they exist.

    Attributes:
        learning_rate: largest learning rate, reached at the end of the warm-up.
        adam_beta1, adam_beta2, adam_epsilon: β₁, β₂ and ε in the equations of the module.
        weight_decay: λ, for the parameters for which `decays` is true.
        max_grad_norm: c.
        lr_scheduler_type: `linear` or `inverse_sqrt`, as in transformers: after the warm-up, η decreases linearly to 0 or as 1/√t;
            or `bert`, as in google-research/bert: η decreases linearly to 0 as if the decrease had begun at the first step, so that
            it drops by the fraction warmup_steps / max_steps at the end of the warm-up.
        warmup_steps: number of steps in which η increases linearly from 0, its value in the first step.
        max_steps: number of steps of a run.
        bias_correction: whether m and v are divided by 1 − β₁ᵗ and 1 − β₂ᵗ.

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
        """Validate the settings; raises `UsageError` for an unknown schedule or a warm-up that is not shorter than the run."""
        if self.lr_scheduler_type not in SCHEDULES:
            raise UsageError(f"lr_scheduler_type {self.lr_scheduler_type!r} has no formula here; known are {', '.join(SCHEDULES)}")
        if not 0 < self.warmup_steps < self.max_steps:
            raise UsageError(f"warmup_steps is {self.warmup_steps}, expected from 1 to max_steps − 1, {self.max_steps - 1}")

    def rate(self, step: int) -> float:
        """Return the learning rate η in step 1, 2, …, as in transformers' schedulers, which count steps from 0."""
        before, warm = step - 1, self.warmup_steps
        if before < warm:
            return self.learning_rate * before / warm
        if self.lr_scheduler_type == "inverse_sqrt":
            return self.learning_rate * math.sqrt(warm / before)
        if self.lr_scheduler_type == "bert":
            return self.learning_rate * max(1.0 - before / self.max_steps, 0.0)
        return self.learning_rate * max(self.max_steps - before, 0) / (self.max_steps - warm)


STEPS = 4  # steps of a run whose every activation is judged; includes the end of the warm-up
WHOLE = 24  # steps of a run through a whole schedule
_FEW = Training(learning_rate=1e-2, adam_epsilon=1e-3, weight_decay=1.0, max_grad_norm=0.1, warmup_steps=2, max_steps=6)
_MANY = replace(_FEW, warmup_steps=6, max_steps=WHOLE)
# Settings chosen so that each of them affects the result: ε is comparable to the gradients, so that clipping changes the update
# (Adam is otherwise invariant to scaling); η and η λ exceed half an ulp of bfloat16; the run covers both warm-up and decrease.
STEPPED: Mapping[str, Training] = {
    "linear": _FEW,
    "inverse_sqrt": replace(_FEW, lr_scheduler_type="inverse_sqrt"),
    "nothing to clip": replace(_FEW, max_grad_norm=1e3),
    "BERT's own": replace(_FEW, lr_scheduler_type="bert", bias_correction=False),
}
_LONG = replace(_FEW, learning_rate=1e-3, adam_epsilon=1.0, max_grad_norm=10.0, warmup_steps=10, max_steps=100)
# Whole runs whose loss is compared. Gradients are clipped at first but not at the end, so that scaled gradients are detected. The
# batch is not memorized, so that late errors are detected as well: after the last step the loss is 0.16 on `tiny` and 4.3 on
# `sinusoidal`. In float32, rounding changes the loss by at most 2e-6; with the rate and ε of `STEPPED`, where errors grow
# exponentially, it changes the loss by as much as its own value after 20 steps.
FOLLOWED: Mapping[str, Training] = {
    "linear": _LONG,
    "inverse_sqrt": replace(_LONG, lr_scheduler_type="inverse_sqrt"),
    "BERT's own": replace(_LONG, lr_scheduler_type="bert", bias_correction=False),
}
SCHEDULED: Mapping[str, Training] = {name: replace(_MANY, lr_scheduler_type=name) for name in SCHEDULES}


def decays(name: str) -> bool:
    """Return whether weight decay applies to a parameter: to matrices and tables, not to biases and norms.

    This follows the code of Devlin et al. 2019.

    Example:
        >>> decays("bert.pooler.dense.weight"), decays("bert.pooler.dense.bias"), decays("bert.embeddings.LayerNorm.weight")
        (True, False, False)
    """
    return not (name.endswith("bias") or ".LayerNorm." in name)


_ROW = re.compile(r"step\.\d+\..")


def at(step: int, name: str) -> str:
    """Return the name of a tensor in a step of a run; parameters in step 0 are those before the first step.

    Example:
        >>> at(2, "bert.pooler.dense.bias.grad")
        'step.2.bert.pooler.dense.bias.grad'
    """
    return f"step.{step}.{name}"


def is_of_a_run(name: str) -> bool:
    """Return whether a name is that of a row of a run."""
    return _ROW.match(name) is not None


def step_of(name: str) -> int:
    """Return the step that a row of a run belongs to."""
    return int(name.split(".", 2)[1])


def parameter_of(name: str) -> str:
    """Return the name of the parameter or gradient that a row of a run contains."""
    return name.split(".", 2)[2]


# Kinds of rows.
INITIAL, GRADIENT, NORM, ADAM = "initial", "given_gradient", "gradient_norm", "adam"
GIVEN = (INITIAL, GRADIENT)  # inputs of the other rows; not judged themselves


def run_table(shapes: Mapping[str, tuple[int, ...]], steps: int, judged: Collection[str]) -> dict[str, Activation]:
    """Return the rows of a run of optimizer steps.

    They are the judged parameters before the run and then, for each step, the gradients of all parameters, their global norm, and
    the judged parameters after the step.
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
    """Return a row with the shape of a parameter; a row without parents is not computed and is exact."""
    *height, width = shape
    axes = ("row", "feature") if height else ("feature",)
    return Activation(name, kind, parents, axes, width, equation, read, exact=not parents, height=sum(height))


CONSTANT, DRAWN = "initial_constant", "initial_draw"
WORDS = "bert.embeddings.word_embeddings.weight"


def constant_of(name: str) -> float | None:
    """Return the initial value of all elements of a parameter, or None if they are random.

    Example:
        >>> constant_of("bert.pooler.dense.bias"), constant_of("bert.embeddings.LayerNorm.weight"), constant_of("classifier.weight")
        (0.0, 1.0, None)
    """
    if name.endswith("bias"):
        return 0.0
    return 1.0 if ".LayerNorm." in name else None


def initial_table(a: Architecture) -> dict[str, Activation]:
    """Return a row for each parameter before the first step, named `step.0.NAME`."""
    rows = {}
    for name, shape in parameter_shapes(a).items():
        constant = constant_of(name)
        kind, equation = (DRAWN, "N(0, initializer_range²)") if constant is None else (CONSTANT, f"{constant:g}")
        rows[at(0, name)] = replace(parameter_row(at(0, name), kind, (), shape, equation, {}), exact=constant is not None)
    return rows
