"""The definition of a fault: a mistake in one step of the network, expressed as a change of the oracle.

A fault maps a correct step to a faulty step. The result is a step again, so several faults of the same step can be composed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np

from conformance.faults.hints import hint
from conformance.model.activation import Activation
from conformance.model.batch import Ids
from conformance.numerics.formats import Array, Format
from conformance.oracle import Network, Step

# Kinds of steps on which faults act.
LINEARS = frozenset({"linear", "first_token_linear"})
PRODUCTS = LINEARS | {"scores", "context"}
ERF_FORM = frozenset({"gelu"})
TANH_FORMS = frozenset({"gelu_new", "gelu_pytorch_tanh"})
GELUS = TANH_FORMS | ERF_FORM
RELU = frozenset({"relu"})
FUNCTIONS = GELUS | RELU
COMPUTED = PRODUCTS | FUNCTIONS | {"norm", "tanh", "probs"}

MOST_OPERATIONS = 2**32  # A limit of work, the same on every machine: what costs more is not tried, and has no name by it.


@dataclass(frozen=True)
class FaultContext:
    """The data that a fault may read besides the step that it acts on.

    Attributes:
        network: the network, for its other parameters and equations.
        values: activations that are known at the step, by name: captured, or computed from captured activations.
        storage: the declared storage format.
    """

    network: Network
    values: Mapping[str, Array]
    storage: Format


Change = Callable[[Step, FaultContext], Step | None]


@dataclass(frozen=True)
class Parameter:
    """The number that a fault sets to a wrong value.

    Attributes:
        name: the name of the number in reports.
        right: function from a step to the value in the checkpoint.
        wrong: function from a step to the most usual wrong value.
        changed: function from a step and a value to the step with that value, or to None where the fault is impossible.
        least: lower limit; values at or below it are not considered.
        setting: the number's name in the config; empty if it has none.
        defaults: values that are usually hard-coded, BERT's own first.
        quantity: the number in words, for the numbers that a pass confirms; empty if the fault changes more than the number.
        is_of_sizes: whether the number is computed from sizes of the network, so that a wrong one may be computed from other sizes.
    """

    name: str
    right: Callable[[Step], float]
    wrong: Callable[[Step], float]
    changed: Callable[[Step, float], Step | None]
    least: float = 0.0
    setting: str = ""
    defaults: tuple[float, ...] = ()
    quantity: str = ""
    is_of_sizes: bool = False


@dataclass(frozen=True)
class SameFunction:
    """A fault that is the same function of every input as another one, unless an activation between their steps is exposed.

    Attributes:
        name: the name of the other fault, which is reported in its place.
        phrase: the fault that is not reported, as a clause; `{value}` is replaced by its number.
    """

    name: str
    phrase: str


# When a fault is tried, by the cost of trying it.
ALWAYS: Final = "always"  # It has a matched filter, with which a pass says whether it would have been detected.
FAILED: Final = "failed"  # Where an activation fails, also together with other faults: RMS and largest error always detect it.
ALONE: Final = "alone"  # Where an activation fails, without other faults.
Tried = Literal["always", "failed", "alone"]

# What a fault acts on as a whole, so that it is no fault of a part of it.
STEP: Final = "step"
ROWS: Final = "rows"  # The rows of a batch: the effect on one row depends on the others.
SIBLINGS: Final = "siblings"  # In a layer, all of the activations on which it can act, or none.
WHOLE_LAYER: Final = "layer"  # A layer, which it replaces, so that it is also searched for from later layers.
EVERY_LAYER: Final = "every layer"  # All layers but one at most, which may be right nevertheless.
Extent = Literal["step", "rows", "siblings", "layer", "every layer"]


class Described:
    """What a mistake of the catalogue and a fitted one have in common: where they can be, and the words in `hints.md`, by name."""

    name: str
    kinds: frozenset[str]
    only: tuple[str, ...]

    @property
    def source(self) -> str:
        """Where it was reported, or `constructed`."""
        return hint(self.name).source

    @property
    def cause(self) -> str:
        """The usual cause; empty if none is known."""
        return hint(self.name).cause

    @property
    def equation(self) -> str:
        """The equation of the faulty step, in the symbols of `conformance.oracle`; empty if the sentence states it."""
        return hint(self.name).equation

    @property
    def fix(self) -> str:
        """How to repair the candidate."""
        return hint(self.name).repair

    def is_possible_at(self, kind: str, name: str) -> bool:
        """Return whether the fault can occur at an activation of this kind and name."""
        return kind in self.kinds and name.endswith(self.only)


@dataclass(frozen=True)
class Fault(Described):
    """A mistake in one step; the words that are not in its sentence are in `hints.md`, by its name.

    Attributes:
        name: the fault's name in results files.
        kinds: the kinds of step that it acts on.
        sentence: description of the fault; `{value}` and `{right}` are replaced by the wrong and the correct number.
        change: function from a correct step to the faulty step, or to None where the fault is impossible or has no effect; not
            used for faults with a parameter, which define the change in `parameter`.
        only: suffixes of the activation's name, for faults that do not act on every step of a kind.
        parameter: the number that is wrong; None for faults without a number.
        tried: when the fault is tried.
        extent: what it acts on as a whole.
        sentences: more specific descriptions, by the kind of the step that the fault acts on.
        same_as: the fault that is reported in its place where no input distinguishes the two; None if there is none.
    """

    name: str
    kinds: frozenset[str]
    sentence: str
    change: Change | None = None
    only: tuple[str, ...] = ("",)
    parameter: Parameter | None = None
    tried: Tried = ALWAYS
    extent: Extent = STEP
    sentences: Mapping[str, str] = field(default_factory=dict, hash=False)
    same_as: SameFunction | None = None

    @property
    def after_failure(self) -> bool:
        """Whether the fault is tried only where an activation fails, so that it has no filter."""
        return self.tried != ALWAYS

    def sentence_at(self, kind: str) -> str:
        """Return the description of the fault in a step of this kind."""
        return self.sentences.get(kind, self.sentence)

    def applies_to(self, row: Activation) -> bool:
        """Return whether the fault can occur at this activation."""
        return self.is_possible_at(row.kind, row.name)

    def applied(self, step: Step, context: FaultContext, value: float | None = None) -> Step | None:
        """Return the step with the fault, or None where the fault is impossible.

        None is also returned if the fault changes the shape of the result, as the parameters of a layer with a different number of
        heads do.

        Args:
            step: the step without the fault.
            context: the data that the fault may read.
            value: value of the parameter; None for the usual wrong value.
        """
        with np.errstate(all="ignore"):  # A mistake may divide by zero or overflow.
            if self.parameter is not None:
                faulty: Step | None = self.parameter.changed(step, self.parameter.wrong(step) if value is None else value)
            else:
                assert self.change is not None
                faulty = self.change(step, context)
            return faulty if faulty is not None and faulty.value.shape == step.value.shape else None


def ignored(setting: str) -> str:
    """Return the end of a sentence that says that the config's setting is ignored; empty if the setting has no name."""
    return f": the config's {setting} is ignored" if setting else ""


def with_parameters(step: Step, **parameters: Array) -> Step:
    """Return the step with other values of these parameters."""
    return step.replaced(site=replace(step.site, parameters={**step.site.parameters, **parameters}))


def with_batch(step: Step, **arrays: Array | Ids | None) -> Step:
    """Return the step on a batch with other values of these arrays, which are in memory as all of a batch is."""
    in_memory: dict[str, Any] = {name: array if array is None else np.asarray(array) for name, array in arrays.items()}
    batch = replace(step.site.batch, **in_memory)
    return step.replaced(site=replace(step.site, batch=batch))


def parameters_of(context: FaultContext, name: str, step: Step) -> Mapping[str, Array] | None:
    """Return the parameters of the activation `name`, by role; None unless their roles and shapes are those of `step`."""
    if name not in context.network.table:
        return None
    other, own = context.network.site(name).parameters, step.site.parameters
    return other if {n: p.shape for n, p in other.items()} == {n: p.shape for n, p in own.items()} else None
