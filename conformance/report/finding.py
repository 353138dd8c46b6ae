"""A mistake, and what is said of it: its sentence, evidence, usual cause and repair. Names of steps and activations in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from conformance.faults import BY_NAME, reported_as
from conformance.faults.fault import Fault, ignored
from conformance.faults.fitted import DESCRIPTIONS, FITTED, Fitted
from conformance.judge.number_words import enumerated, figure, hard_coded
from conformance.judge.residual_description import HALF, format_of
from conformance.judge.step_phrases import backward_place, phrases, ranged
from conformance.model.activations import LAYER
from conformance.model.training import is_of_a_run, parameter_of, step_of
from conformance.report.drawings import bounded
from conformance.results.records import ActivationRecord, FaultRecord

REDUCED = "precision-"  # with which the names of faults begin that round operands, weights or results
MOST_LISTED = 4  # maximum number of parameters of a training run, and of numbers of a fit, that are listed
MOST_KINDS = 4  # maximum number of kinds of step in reduced precision that are listed; more are counted
UNNAMED = "an error without a name"
DESCRIBED = "no mistake of the catalogue explains it, but "  # precedes the sentence of a description


@dataclass(frozen=True)
class Finding:
    """A mistake, with the activations that it explains, and what is said of it.

    Attributes:
        fault: strongest evidence for the mistake; None if no fault of the catalogue explains the activations.
        steps: names of the steps at which the mistake acts.
        others: names of faults that cannot be distinguished from this one.
        excess: largest error divided by its limit, maximized over the explained activations; None if there is no limit.
        activations: names of the activations that the mistake explains.
        layers: the number of the network's encoder layers.
        anatomy: sentences that describe the error of an unidentified mistake, or state which batch identified it.
        reason: for an unidentified mistake, an error that does not depend on the values, such as a wrong shape, or `SCREENED` if no
            explanation was searched for; may be empty.
        hidden: for an unidentified mistake, a sentence on the unexposed steps in which it may be instead; may be empty.
        deviating: evidence whose estimates contradict that of `fault`, in the order of computation.
        backward_of: by the name of a step that is a gradient, the forward step whose backward pass is wrong, if it is known.
        numbers: for each of `others` its estimated number in words; empty if it has none.
        same: the faults of `others` that are the same function (`Fault.same_as`), as clauses with their numbers.
        closed_forms: closed forms of the estimates, as `0.1767767 = 1/√32 = 1/√(the hidden size)`.
        estimates: for a fitted fault, the numbers that are reported, each with the parameter that it belongs to.
    """

    fault: FaultRecord | None
    steps: tuple[str, ...]
    others: tuple[str, ...]
    excess: float | None
    activations: tuple[str, ...]
    layers: int = 0
    anatomy: tuple[str, ...] = ()
    reason: str = ""
    hidden: str = ""
    estimates: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    closed_forms: tuple[str, ...] = ()
    deviating: tuple[FaultRecord, ...] = ()
    backward_of: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        """The name of the fault; None if the mistake is unidentified."""
        return self.fault.name if self.fault else None

    @property
    def is_description(self) -> bool:
        """Whether name and sentence only describe the result, since no mistake of the catalogue explains it.

        The equation then holds with other numbers than it should read, such as other parameters than the checkpoint's.
        """
        return self.name in DESCRIPTIONS

    @property
    def lines(self) -> list[str]:
        """The lines about the mistake: its sentence, evidence, usual cause and repair, or the anatomy if it is unidentified."""
        every = (self.sentence, self.evidence, self.cause, self.repair, self.hidden, *self.anatomy)
        return [line for line in every if line]

    @property
    def sentence(self) -> str:
        """One sentence: the place of the mistake, its nature, and the faults that cannot be distinguished from it."""
        f = self.fault
        if f is not None and is_reduced(f.name):
            place = where_reduced(self.steps, self.layers)
        else:
            place = where(self.steps, self.layers, self.backward_of)
        if f is None:
            return f"{place}: {self.reason or UNNAMED + rounding(self.anatomy)}"
        numbers = self.numbers or [""] * len(self.others)
        named = [(o, n) for o, n in zip(self.others, numbers, strict=True) if not is_same_function(o, f.name)]
        others = ", ".join(f"{o} ({n})" if n else o for o, n in named)
        same = f" (or {', or '.join(self.same)}; the exposed activations cannot tell which)" if self.same else ""
        alike = f"; with these inputs and exposed activations it cannot be distinguished from {others}" if others else ""
        return f"{place}: {_nature(f, self.closed_forms)}{same}{alike}"

    @property
    def evidence(self) -> str:
        """The figures of the mistake; empty if it is unidentified.

        They are the estimate with its deviation if there is one: it makes the amplitude 1, and z, which is in units of the
        amplitude's deviation under rounding, is not the estimate's distance in its own. Otherwise they are z, and the amplitude
        unless the fault is fitted.
        """
        f = self.fault
        if f is None:
            return ""
        if f.name not in BY_NAME:
            numbers, what = "; ".join(_listed(self.estimates)), next((k.estimates for k in FITTED if k.name == f.name), "")
            estimate = f"{what or 'estimated'}: {numbers}" if numbers else f"estimated: {what}" if what else ""
            figures = [*([] if "±" in numbers else [f"z = {bounded(f.z)}"]), *filter(None, [estimate])]
            return f"{f.name}{', a description' if self.is_description else ''}: {', '.join(figures)}"
        if is_reduced(f.name):  # The amplitude is not 1, since a part of the rounding depends on the order of operations.
            return f"{f.name}: z = {bounded(f.z)}"
        if f.estimate is None or f.deviation is None:
            return f"{f.name}: amplitude {f.amplitude:.3f}, z = {bounded(f.z)}"
        expected = "" if f.right is None else f", expected {f.right:.7g}"
        return f"{f.name}: estimated {f.parameter} = {_estimate(f)}{expected}{_contradictions(self.deviating)}"

    @property
    def cause(self) -> str:
        """The usual cause of the mistake, or a possible cause of what is only described, with its source; may be empty."""
        entry = _entry(self.fault.name, self.steps) if self.fault else None
        if entry is None or not entry.cause:
            return ""
        source = "" if entry.source == "constructed" else f" ({entry.source})"
        return f"{'possible' if self.is_description else 'usual'} cause: {entry.cause}{source}"

    @property
    def repair(self) -> str:
        """How the mistake is usually repaired; empty if it is unidentified."""
        entry = _entry(self.fault.name, self.steps) if self.fault else None
        return f"repair: {entry.fix}" if entry else ""


def is_same_function(name: str, reported: str) -> bool:
    """Return whether a fault is the same function as the reported one, so that no input distinguishes them."""
    return name in BY_NAME and reported_as(name) == reported


def same_phrase(name: str, value: float | None, deviation: float | None) -> str:
    """Return a fault that is the same function as the reported one as a clause, with its number if it has one."""
    same = BY_NAME[name].same_as
    assert same is not None
    return same.phrase.format(value="" if value is None else figure(value, deviation or 0.0))


def _estimate(f: FaultRecord) -> str:
    return f"{figure(f.estimate or 0.0, f.deviation or 0.0)} ± {f.deviation:.1g}"


def _contradictions(deviating: Sequence[FaultRecord]) -> str:
    """Return the estimates that contradict the reported one, each with its step, or their range if they are many."""
    if not deviating:
        return ""
    if len(deviating) <= MOST_LISTED:
        return f"; estimates that contradict it: {', '.join(f'{_estimate(f)} at {f.step}' for f in deviating)}"
    ordered = sorted(deviating, key=lambda f: f.estimate or 0.0)
    return f"; {len(deviating)} estimates contradict it: from {_estimate(ordered[0])} to {_estimate(ordered[-1])}"


def _listed(texts: Sequence[str]) -> Sequence[str]:
    return texts if len(texts) <= MOST_LISTED else (*texts[: MOST_LISTED - 1], f"{len(texts) - MOST_LISTED + 1} more")


def _nature(f: FaultRecord, closed_forms: Sequence[str]) -> str:
    """Return what a mistake is, with its estimated number: as the default of another library or a closed form, if it is one."""
    entry = _entry(f.name)
    if entry is None:
        return f.name
    said = entry.sentence_at(f.kind) if isinstance(entry, Fault) else DESCRIBED * entry.is_description + entry.sentence
    value = "" if f.estimate is None else figure(f.estimate, f.deviation or 0.0)
    right = "" if f.right is None else f"{f.right:.7g}"
    parameter = BY_NAME[f.name].parameter if f.name in BY_NAME else None
    if parameter is None or f.estimate is None or f.deviation is None or f.right is None:
        return said.format(value=value, right=right)
    defaults = hard_coded(parameter, f.estimate, f.deviation, f.right)
    closed = next((line for line in closed_forms if line.startswith(f"{value} = ")), value)
    values = " or ".join(f"{default:.4g}" for default in defaults) or closed
    return said.format(value=values, right=right) + (ignored(parameter.setting) if defaults else "")


def _entry(name: str, steps: Sequence[str] = ()) -> Fault | Fitted | None:
    """Return the first fault of that name that can occur at all of these steps; None if the catalogue has none."""
    of_name: list[Fault | Fitted] = [BY_NAME[name]] if name in BY_NAME else [f for f in FITTED if f.name == name]
    return next((fault for fault in of_name if all(step.endswith(fault.only) for step in steps)), None)


def where(steps: Sequence[str], layers: int, backward_of: Mapping[str, str] = {}) -> str:
    """Return a short description of steps: the layers and the steps in them, or for a training run parameters and optimizer steps.

    `backward_of` has, by the name of a gradient, the forward step whose backward pass yields it.
    """
    of_runs = [step for step in steps if is_of_a_run(step)]
    if of_runs:
        taken = sorted({step_of(step) for step in of_runs})
        first, *others = dict.fromkeys(map(parameter_of, of_runs))
        names = enumerated([first, *others] if len(others) < MOST_LISTED else [first, f"{len(others)} more parameters"])
        return f"{names}, in step{'s' * (len(taken) > 1)} {ranged(taken)}"
    return "; ".join(phrases((backward_place(step, backward_of.get(step, "")) for step in steps), layers))


def is_reduced(name: str) -> bool:
    """Return whether a fault is rounding to a half-precision format, for one cause, such as autocast, in most steps at once."""
    return name.startswith(REDUCED) and name.removeprefix(REDUCED) in HALF


def rounding(anatomy: Sequence[str]) -> str:
    """Return in words that an unidentified error has the size of a format's rounding; empty if it does not."""
    formats = [name for line in anatomy if (name := format_of(line))]
    return f", as large as computing in {' or '.join(formats)} would leave" if formats else ""


def where_reduced(steps: Sequence[str], layers: int) -> str:
    """Return the places of reduced precision; if they are many, their layers and the number of kinds of step."""
    inside = [(match[1], match[2]) for step in steps if (match := LAYER.fullmatch(step))]
    kinds = list(dict.fromkeys(kind for _, kind in inside))
    if len(kinds) <= MOST_KINDS:
        return "; ".join(phrases(steps, layers))
    (phrase,) = phrases(sorted({f"encoder.layer.{layer}.{kinds[0]}" for layer, _ in inside}), layers)
    outside = [step for step in steps if not LAYER.fullmatch(step)]
    counted = f"{phrase.removesuffix(f', {kinds[0]}')}, {len(kinds)} kinds of step, {kinds[0]} to {kinds[-1]}"
    return "; ".join([counted, *phrases(outside, layers)])


def origin(a: ActivationRecord) -> str:
    """Return the place of the activation and, for a gradient, the forward step whose backward pass is wrong, if it is known."""
    return f"backward pass of {a.backward_of}, seen in {place(a)}" if a.backward_of else place(a)


def place(a: ActivationRecord) -> str:
    """Return the name of the activation, followed by the name of the batch if the record has one."""
    return f"{a.activation} [{a.batch}]" if a.batch else a.activation
