"""Mistakes in words: the sentence, the evidence, the usual cause and the repair of each, and names of steps."""

from collections.abc import Mapping, Sequence

from conformance.faults import BY_NAME
from conformance.faults.fault import Fault, ignored
from conformance.faults.fitted import DESCRIPTIONS, FITTED, Fitted
from conformance.judge.number_words import enumerated, figure, hard_coded
from conformance.judge.residual_description import HALF, format_of
from conformance.judge.step_phrases import backward_place, phrases, ranged
from conformance.model.activations import LAYER
from conformance.model.training import is_of_a_run, parameter_of, step_of
from conformance.report.drawings import bounded
from conformance.report.findings import REDUCED, Finding, findings, is_same_function
from conformance.results.records import ActivationRecord, FaultRecord
from conformance.results.result import NamedFinding, Result
from conformance.results.to_records import activation_records

MOST_LISTED = 4  # maximum number of parameters of a training run, and of numbers of a fit, that are listed
MOST_KINDS = 4  # maximum number of kinds of step in reduced precision that are listed; more are counted
UNNAMED = "an error without a name"
DESCRIBED = "no mistake of the catalogue explains it, but "  # precedes the sentence of a description


def findings_of(result: Result) -> tuple[NamedFinding, ...]:
    """Return the mistakes of a result in words, worst first."""
    return tuple(
        NamedFinding(
            f.fault.name if f.fault else None,
            sentence(f),
            evidence(f),
            cause(f),
            f.steps,
            f.activations,
            f.others,
            tuple(filter(None, (f.hidden, *f.anatomy))),
            f.fault is not None and f.fault.name in DESCRIPTIONS,
        )
        for f in findings(activation_records(result))
    )


def lines(finding: Finding) -> list[str]:
    """Return the lines about a mistake: its sentence, evidence, usual cause and repair, or the anatomy if it is unidentified."""
    every = (sentence(finding), evidence(finding), cause(finding), repair(finding), finding.hidden, *finding.anatomy)
    return [line for line in every if line]


def sentence(finding: Finding) -> str:
    """Return one sentence about a mistake: its place, its nature, and the faults that cannot be distinguished from it."""
    f = finding.fault
    if f is not None and is_reduced(f.name):
        place = where_reduced(finding.steps, finding.layers)
    else:
        place = where(finding.steps, finding.layers, finding.backward_of)
    if f is None:
        return f"{place}: {finding.reason or UNNAMED + rounding(finding.anatomy)}"
    numbers = finding.numbers or [""] * len(finding.others)
    named = [(o, n) for o, n in zip(finding.others, numbers, strict=True) if not is_same_function(o, f.name)]
    others = ", ".join(f"{o} ({n})" if n else o for o, n in named)
    same = f" (or {', or '.join(finding.same)}; the exposed activations cannot tell which)" if finding.same else ""
    alike = f"; with these inputs and exposed activations it cannot be distinguished from {others}" if others else ""
    return f"{place}: {_nature(f, finding.closed_forms)}{same}{alike}"


def evidence(finding: Finding) -> str:
    """Return the figures of a mistake; empty if it is unidentified.

    They are the estimate with its deviation if there is one: it makes the amplitude 1, and z, which is in units of the amplitude's
    deviation under rounding, is not the estimate's distance in its own. Otherwise they are z, and the amplitude unless the fault is
    fitted.
    """
    f = finding.fault
    if f is None:
        return ""
    if f.name not in BY_NAME:
        numbers, what = "; ".join(_listed(finding.estimates)), next((k.estimates for k in FITTED if k.name == f.name), "")
        estimate = f"{what or 'estimated'}: {numbers}" if numbers else f"estimated: {what}" if what else ""
        figures = [*([] if "±" in numbers else [f"z = {bounded(f.z)}"]), *filter(None, [estimate])]
        return f"{f.name}{', a description' if f.name in DESCRIPTIONS else ''}: {', '.join(figures)}"
    if is_reduced(f.name):  # The amplitude is not 1, since a part of the rounding depends on the order of operations.
        return f"{f.name}: z = {bounded(f.z)}"
    if f.estimate is None or f.deviation is None:
        return f"{f.name}: amplitude {f.amplitude:.3f}, z = {bounded(f.z)}"
    expected = "" if f.right is None else f", expected {f.right:.7g}"
    return f"{f.name}: estimated {f.parameter} = {_estimate(f)}{expected}{_contradictions(finding.deviating)}"


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


def cause(finding: Finding) -> str:
    """Return the usual cause of a mistake, or a possible cause of what is only described, with its source, or an empty text."""
    entry = _entry(finding.fault.name, finding.steps) if finding.fault else None
    if entry is None or not entry.cause:
        return ""
    source = "" if entry.source == "constructed" else f" ({entry.source})"
    return f"{'possible' if entry.name in DESCRIPTIONS else 'usual'} cause: {entry.cause}{source}"


def repair(finding: Finding) -> str:
    """Return how a mistake is usually repaired; empty if it is unidentified."""
    entry = _entry(finding.fault.name, finding.steps) if finding.fault else None
    return f"repair: {entry.fix}" if entry else ""


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
