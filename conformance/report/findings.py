"""Grouping of the failing activations of a case into findings, one finding for each mistake. Pure functions of the records.

An activation may have several explanations that cannot be distinguished there. The explanation that accounts for the largest
number of activations is chosen, with one value of its parameter if it has one: a mistake that needs another value in each layer is
less likely than one that has the same value in all. A mistake that by its nature acts in every layer is considered only if it does
act in every layer; it is then preferred to mistakes at single steps.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from operator import attrgetter

from conformance.faults import BY_NAME
from conformance.faults.fault import EVERY_LAYER, SIBLINGS
from conformance.faults.fitted import FITTED
from conformance.judge import SCREENED
from conformance.judge.further_batches import FURTHER
from conformance.judge.number_words import COINCIDENCE, figure
from conformance.judge.residual_description import format_of
from conformance.model.activations import LAYER
from conformance.numerics.thresholds import max_threshold
from conformance.report.finding import REDUCED, Finding, is_same_function, same_phrase
from conformance.report.unexposed_steps import possibly_before
from conformance.results.records import ActivationRecord, FaultRecord
from conformance.results.result import Result
from conformance.results.to_records import activation_records

LARGEST = frozenset(fault.name for fault in FITTED if fault.is_largest_error)
WHOLE = frozenset(name for name, fault in BY_NAME.items() if fault.extent == EVERY_LAYER)


def is_unnamed(a: ActivationRecord) -> bool:
    """Return whether a failing activation is an unidentified mistake: it was judged, and no fault explains it."""
    return not a.faults and (not a.reason or a.local is not None)


def fault_of(a: ActivationRecord) -> str:
    """Return the name of the reduced precision that leaves an unexplained error of this size; empty if there is none."""
    formats = [name for line in a.anatomy if (name := format_of(line))]
    return f"{REDUCED}{formats[0]}" if len(formats) == 1 else ""


def findings_of(result: Result) -> tuple[Finding, ...]:
    """Return the mistakes of a result, worst first."""
    return tuple(findings(activation_records(result)))


def findings(activations: Iterable[ActivationRecord]) -> list[Finding]:
    """Return the mistakes of one case by decreasing excess, where None is infinite; of ties, identified mistakes come first."""
    activations = list(activations)
    failed = [a for a in activations if a.outcome == "fail"]
    chosen = _chosen([a for a in failed if a.faults], activations)
    nameless = [a for a in failed if is_unnamed(a)]
    named = [_with_rounding(_finding(group), nameless, activations) for group in _grouped(chosen)]
    reduced = {f.fault.name for f in named if f.fault}
    unnamed = [_unnamed(alike, activations) for alike in _alike(a for a in nameless if fault_of(a) not in reduced)]
    backward_of, layers = {a.activation: a.backward_of for a in activations if a.backward_of}, layers_of(activations)
    placed = [
        replace(f, layers=layers, backward_of={s: backward_of[s] for s in f.steps if s in backward_of}) for f in (*named, *unnamed)
    ]
    return sorted(placed, key=lambda f: -(float("inf") if f.excess is None else f.excess))


def mistakes(activations: Iterable[ActivationRecord]) -> list[Finding]:
    """Return the findings; those of which only the place is known are merged into one."""
    activations = list(activations)
    every = findings(activations)
    bare = [f for f in every if f.fault is None and not f.anatomy and f.reason in ("", SCREENED)]
    if not bare:
        return every
    steps, names = (
        tuple(dict.fromkeys(chain.from_iterable(of))) for of in ((f.steps for f in bare), (f.activations for f in bare))
    )
    together = replace(bare[0], steps=steps, activations=names, hidden=possibly_before(names, activations))
    return [together if f is bare[0] else f for f in every if f is bare[0] or f not in bare]


def is_same_mistake(a: Finding, b: Finding, limit: float) -> bool:
    """Return whether two findings, of two runs or two checks, are one mistake.

    They have the same name and, within `limit` standard deviations, the same number; or one cannot be distinguished from the
    other; or both are unidentified.
    """
    if a.fault is None or b.fault is None:
        return a.fault is b.fault
    if a.fault.name == b.fault.name:
        return agrees(a.fault, b.fault, limit)
    return b.fault.name in a.others or a.fault.name in b.others


def filter_limit(activations: Iterable[ActivationRecord]) -> float:
    """Return the largest threshold of the matched filters' |z| at these activations."""
    return max((a.limits.get("filter", 0.0) for a in activations), default=0.0)


def _with_rounding(finding: Finding, nameless: Sequence[ActivationRecord], activations: Sequence[ActivationRecord]) -> Finding:
    """Return the finding of reduced precision with the unexplained errors of its size, which are taken for the same mistake."""
    same = [a for a in nameless if finding.fault and fault_of(a) == finding.fault.name]
    order = {a.activation: i for i, a in enumerate(activations)}
    steps, names = (
        tuple(sorted({*old, *(a.activation for a in same)}, key=lambda step: order.get(step, 0)))
        for old in (finding.steps, finding.activations)
    )
    excess = _largest([finding.excess, *(a.excess for a in same)])
    return replace(finding, steps=steps, activations=names, excess=excess) if same else finding


def layers_of(activations: Iterable[ActivationRecord]) -> int:
    """Return the number of encoder layers, as far as the names of the activations show it."""
    return max((int(match[1]) + 1 for a in activations if (match := LAYER.fullmatch(a.activation))), default=0)


_name = attrgetter("name")
_Set = Sequence[FaultRecord]  # faults that together explain an activation
_Choice = tuple[ActivationRecord, _Set, Sequence[_Set]]  # an activation, its chosen explanation, and all possible ones


def _chosen(failed: Sequence[ActivationRecord], activations: Sequence[ActivationRecord]) -> list[_Choice]:
    """Return for each failing activation the explanation whose faults account for the largest number of failing activations.

    Of explanations that account for as many, one is chosen for all activations where it is possible.
    """
    layers = layers_of(activations)
    options = [[e for e in (a.faults, *a.alternatives) if _is_possible(e, activations, layers)] or [a.faults] for a in failed]
    evidence_of = defaultdict[str, list[list[FaultRecord]]](list)  # the evidence for each fault, by activation
    for possible in options:
        evidence = sorted(chain.from_iterable(possible), key=_name)
        for name, of_one in groupby(evidence, key=_name):
            evidence_of[name].append(list(of_one))

    def count(fault: FaultRecord) -> int:
        every = evidence_of[fault.name]
        return sum(any(_are_alike(fault, other, len(every)) for other in of_one) for of_one in every)

    def weight(explanation: _Set) -> tuple[float, bool]:
        return min(count(f) for f in explanation), any(f.name in WHOLE for f in explanation)

    def is_like(explanation: _Set, other: _Set) -> bool:
        pairs = zip(sorted(explanation, key=_name), sorted(other, key=_name), strict=False)
        return len(explanation) == len(other) and all(
            a.name == b.name and _are_alike(a, b, len(evidence_of[a.name])) for a, b in pairs
        )

    chosen = dict[int, _Set]()
    for best in sorted(chain.from_iterable(options), key=weight, reverse=True):
        for index, possible in enumerate(options):
            if index not in chosen and (like := next((e for e in possible if is_like(e, best)), None)):
                chosen[index] = like
    return [(a, chosen[index], options[index]) for index, a in enumerate(failed)]


def _is_possible(explanation: Sequence[FaultRecord], activations: Sequence[ActivationRecord], layers: int) -> bool:
    """Return whether the activations of all layers are consistent with an explanation.

    A fault that acts in every layer must explain all layers but one, whose parameters may be right, by chance or by the
    mistake; in the layers that it explains, no step on which it acts may pass.
    """
    of_layers = [(a, m[1]) for a in activations if (m := LAYER.fullmatch(a.activation))]
    for name in WHOLE & {f.name for f in explanation}:
        applied = {
            m[1]
            for a in activations
            for e in (a.faults, *a.alternatives)
            for f in e
            if f.name == name and (m := LAYER.match(f.step))
        }
        passes = any(
            layer in applied and a.outcome == "pass" and a.activation.endswith(BY_NAME[name].only) for a, layer in of_layers
        )
        if passes or len(applied) < layers - 1:
            return False
    return not any(_is_half(fault, activations) for fault in explanation)


def _is_half(fault: FaultRecord, activations: Sequence[ActivationRecord]) -> bool:
    """Return whether a fault that must act on all its activations of a layer together leaves one that passes."""
    entry, match = BY_NAME.get(fault.name), LAYER.fullmatch(fault.step)
    if entry is None or entry.extent != SIBLINGS or match is None:
        return False
    layer = f"encoder.layer.{match[1]}."
    return any(a.outcome == "pass" and a.activation.startswith(layer) and a.activation.endswith(entry.only) for a in activations)


_Evidence = tuple[ActivationRecord, FaultRecord, _Set, Sequence[_Set]]


def _grouped(chosen: Iterable[_Choice]) -> Iterator[list[_Evidence]]:
    """Yield groups of evidence for the same fault with the same parameter value within the errors.

    Estimates of faults in `LARGEST` depend on the inputs and are not compared.
    """
    groups: dict[str, list[list[_Evidence]]] = {}
    for activation, explanation, options in chosen:
        for fault in explanation:
            alike = groups.setdefault(fault.name, [])
            limit = activation.limits.get("filter", 0.0)
            group = next((g for g in alike if fault.name in LARGEST or agrees(fault, g[0][1], limit)), None)
            if group is None:
                alike.append(group := [])
            group.append((activation, fault, explanation, options))
    yield from chain.from_iterable(groups.values())


def agrees(a: FaultRecord, b: FaultRecord, limit: float) -> bool:
    """Return whether two estimates agree: their difference is at most `limit` standard deviations, or they cannot be compared.

    They cannot be compared if one of them is missing, or if they are of different parameters. `limit` is the threshold of the
    matched filters' |z|.
    """
    if a.estimate is None or b.estimate is None or a.deviation is None or b.deviation is None or a.parameter != b.parameter:
        return True
    return bool(abs(a.estimate - b.estimate) <= limit * (a.deviation**2 + b.deviation**2) ** 0.5)


def _are_alike(a: FaultRecord, b: FaultRecord, count: int) -> bool:
    """Return whether two estimates of one fault differ by no more than `count` estimates of one number do by chance.

    The probability is that of a coincidence in wording, which is larger than that of an error. Estimates of faults in `LARGEST`
    depend on the inputs and are not compared, nor are those of faults that are not in the catalogue. An estimate that is not a
    number is like itself alone.
    """
    return a is b or a.name in LARGEST or a.name not in BY_NAME or agrees(a, b, max_threshold(count, COINCIDENCE))


def _finding(group: Sequence[_Evidence]) -> Finding:
    evidence = [fault for _, fault, *_ in group]
    strongest = max(evidence, key=lambda f: abs(f.z))
    estimated = [f for f in evidence if f.estimate is not None and f.deviation is not None]
    reported = min(estimated, key=lambda f: (_deviation(f), -abs(f.z)), default=strongest)
    if strongest.name in LARGEST:
        reported = max(evidence, key=lambda f: f.estimate or 0.0)
    lines = dict.fromkeys(line for a, *_ in group for line in a.anatomy)
    others = _others(group)
    return Finding(
        reported,
        tuple(dict.fromkeys(f.step for f in evidence)),
        others,
        _largest([a.excess for a, *_ in group]),
        tuple(dict.fromkeys(a.activation for a, *_ in group)),
        estimates=tuple(dict.fromkeys(_fitted_number(f) for f in evidence if f.estimate is not None and f.name not in BY_NAME)),
        numbers=tuple(_number_of(name, group) for name in others),
        same=tuple(_phrase_of(name, group) for name in others if is_same_function(name, strongest.name)),
        anatomy=tuple(line for line in lines if line.startswith(FURTHER)),
        closed_forms=tuple(line for line in lines if not line.startswith(FURTHER)),
        deviating=tuple(dict.fromkeys(f for f in evidence if not _are_alike(f, reported, len(group)))),
    )


def _phrase_of(name: str, group: Sequence[_Evidence]) -> str:
    sharpest = _sharpest(name, group)
    return same_phrase(name, sharpest.estimate, sharpest.deviation) if sharpest else same_phrase(name, None, None)


def _fitted_number(f: FaultRecord) -> str:
    """Return the number of a fitted fault after the name of its parameter, with its error if it has one."""
    return f"{f.parameter} {figure(f.estimate or 0.0, _deviation(f))}{f' ± {f.deviation:.1g}' if f.deviation else ''}"


def _others(group: Sequence[_Evidence]) -> tuple[str, ...]:
    """Return the names of the other faults each of which alone explains every activation of the group."""
    name = group[0][1].name
    alone = [{e[0].name for e in options if len(e) == 1} - {name} for _, _, explanation, options in group if len(explanation) == 1]
    return tuple(sorted(set.intersection(*alone) - WHOLE)) if alone else ()


def _number_of(name: str, group: Sequence[_Evidence]) -> str:
    """Return the estimated number of a fault that alone explains every activation of the group, where its error is smallest."""
    sharpest = _sharpest(name, group)
    if sharpest is None or name not in BY_NAME:
        return ""
    expected = "" if sharpest.right is None else f", expected {sharpest.right:.7g}"
    return f"{sharpest.parameter} {figure(sharpest.estimate or 0.0, _deviation(sharpest))}{expected}"


def _sharpest(name: str, group: Sequence[_Evidence]) -> FaultRecord | None:
    """Return the evidence for a fault alone whose estimate has the smallest deviation; None if it has no estimate."""
    alone = (e[0] for *_, options in group for e in options if len(e) == 1 and e[0].name == name)
    return min((f for f in alone if f.estimate is not None and f.deviation is not None), key=_deviation, default=None)


def _deviation(f: FaultRecord) -> float:
    return f.deviation or 0.0


def _alike(failed: Iterable[ActivationRecord]) -> Iterable[list[ActivationRecord]]:
    """Group unexplained activations into presumed mistakes.

    Those of one layer with the same non-empty anatomy belong together, and all that have the size of reduced precision.
    """
    groups: dict[tuple[str, ...], list[ActivationRecord]] = {}
    for a in failed:
        match, reduced = LAYER.fullmatch(a.activation), fault_of(a)
        of_layer = (f"layer {match[1]}", *a.anatomy) if match and a.anatomy else (a.activation, a.batch)
        groups.setdefault((reduced,) if reduced else of_layer, []).append(a)
    return groups.values()


def _unnamed(alike: Sequence[ActivationRecord], activations: Sequence[ActivationRecord]) -> Finding:
    first, places = alike[0], tuple(dict.fromkeys(a.activation for a in alike))
    return Finding(
        None,
        places,
        (),
        _largest([a.excess for a in alike]),
        places,
        anatomy=tuple(line for line in first.anatomy if line != SCREENED),
        reason=first.reason or SCREENED * (SCREENED in first.anatomy),
        hidden="" if first.reason else possibly_before(places, activations),
    )


def _largest(excesses: Sequence[float | None]) -> float | None:
    """Return the largest excess; None, which stands for an error without a limit, if any is None."""
    return None if None in excesses else max(e for e in excesses if e is not None)
