"""What a fault is: a mistake in one step of the network, as a change of the oracle.

A fault takes a right step to a faulty one. Steps can be changed again and again, so faults of the same step compose.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from conformance.model.activation import Activation
from conformance.numerics.formats import Array, Format
from conformance.oracle import Network, Step

CORRECT = "Compute the step by the correct equation."


@dataclass(frozen=True)
class FaultContext:
    """What a fault may read besides the step that it acts on.

    Attributes:
        network: other parameters, and equations.
        values: activations that are known where the fault acts: captured, or computed from what was captured.
        storage: the format that is promised.
    """

    network: Network
    values: Mapping[str, Array]
    storage: Format


Change = Callable[[Step, FaultContext], Step | None]


@dataclass(frozen=True)
class Parameter:
    """What a fault got wrong, where it is a number.

    Attributes:
        right, wrong: from a step, its value in the checkpoint, and the fault's usual one.
        changed: the step with any other value.
        least: values at or below it make no sense.
        setting: what the config calls it.
        defaults: the values at which it is usually hard-coded, BERT's own first.
    """

    name: str
    right: Callable[[Step], float]
    wrong: Callable[[Step], float]
    changed: Callable[[Step, float], Step]
    least: float = 0.0
    setting: str = ""
    defaults: tuple[float, ...] = ()


@dataclass(frozen=True)
class Fault:
    """One mistake.

    Attributes:
        name: what the results file calls it.
        kinds: the kinds of step that it acts on.
        sentence: the fault, in words; `{value}` and `{right}` stand for its number.
        source: where it was seen, or `constructed`.
        change: the faulty step, or None where the fault makes no sense there; a parameter gives its own.
        cause: how it usually comes about.
        combines: whether, being `late`, it is looked for beside other faults of its step, too.
        equation: what the step computes, in the symbols of `conformance.oracle`; empty where the sentence says it.
        fix: what to change in the candidate.
        only: ends of the activation's name, where it does not act on every step of a kind.
        parameter: its number, where there is one.
        far: whether it replaces a whole layer, and is looked for from later layers as well.
        whole: whether by its nature it acts wherever it can, in every layer.
        together: whether it acts on all the activations that it can act on in a layer, or on none.
        across: whether what it does to one row of the batch depends on the others.
        late: whether it is looked for only where an activation fails: it cannot hide from RMS and largest error.
    """

    name: str
    kinds: frozenset[str]
    sentence: str
    source: str
    change: Change | None = None
    cause: str = ""
    only: tuple[str, ...] = ("",)
    parameter: Parameter | None = None
    far: bool = False
    whole: bool = False
    late: bool = False
    together: bool = False
    across: bool = False
    combines: bool = False
    equation: str = ""
    fix: str = CORRECT

    def applies_to(self, row: Activation) -> bool:
        """Whether it can happen at this activation."""
        return row.kind in self.kinds and row.name.endswith(self.only)

    def applied(self, step: Step, place: FaultContext, value: float | None = None) -> Step | None:
        """The step with the fault; with that value of its parameter, else with its usual one."""
        if self.parameter is not None:
            return self.parameter.changed(step, self.parameter.wrong(step) if value is None else value)
        assert self.change is not None
        return self.change(step, place)


def ignored(setting: str) -> str:
    """How the sentence of a fault ends that puts a default in place of what the config says; empty where it has no name there."""
    return f": the config's {setting} is ignored" if setting else ""


def with_parameters(step: Step, **parameters: Array) -> Step:
    """The step with other parameters."""
    return step.again(site=replace(step.site, parameters={**step.site.parameters, **parameters}))


def with_batch(step: Step, **arrays: object) -> Step:
    """The step on a batch with other arrays."""
    return step.again(site=replace(step.site, batch=replace(step.site.batch, **arrays)))  # type: ignore[arg-type]


def parameters_of(place: FaultContext, name: str, step: Step) -> Mapping[str, Array] | None:
    """The parameters of another activation's step, by role, for `step`; None where there are none such of the same shapes."""
    if name not in place.network.table:
        return None
    found, own = place.network.site(name).parameters, step.site.parameters
    return found if {n: p.shape for n, p in found.items()} == {n: p.shape for n, p in own.items()} else None
