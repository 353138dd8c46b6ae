"""View of one check of one candidate: mistakes, one wrong element, location of the error, and the command that repeats it."""

import math
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace as replace_record

from conformance.checks.check import EXAMPLES
from conformance.goldens.custom_golden import PREFIX, recorded_as
from conformance.judge.backward_of_wrong_steps import UNJUDGED_GRADIENTS
from conformance.judge.evidence import DIFFERENTIATED
from conformance.report.coverage_sentences import (
    duration,
    exclusions,
    numbers_checked,
    of_sizes,
    searched,
    smallest,
    undetectable,
    verdict,
    weakest,
)
from conformance.report.document import Row, Span
from conformance.report.drawings import LARGEST, bounded, sigma
from conformance.report.finding import origin, place, where
from conformance.report.findings import is_unnamed, layers_of, mistakes
from conformance.report.places import Token, network, scale_of, strip, tokens
from conformance.report.unexposed_steps import not_exposed, possibly_before
from conformance.results.outcomes import FAILING, OUTCOME_TEXT
from conformance.results.records import ActivationRecord, CaseRecords, CheckRecord, CounterexampleRecord, Header

_PARTIAL = {
    "outputs": "this check judges the outputs alone, from the token ids",
    "stages": "this check judges the embeddings, the layers' outputs and the outputs alone, each from the one before it",
}  # checks for which activations that the candidate may expose are set aside
_PLACES = 3  # maximum number of origins with strips, so that a page with many failures stays small
WORST = 5  # maximum number of failing activations, and of mistakes, outside of a page; the results file has all of them


def case_view(
    case: CaseRecords, headers: Sequence[Header] = (), same: str = "", further: Sequence[str] = (), id: str = ""
) -> dict[str, Any]:
    """Return what a report says of one case, by the names that the templates read.

    Args:
        case: records of the case; activations that are declared to fail count as failing ones.
        headers: headers of all runs, for the command that repeats the check.
        same: a sentence that replaces the mistakes, since another case of the report has them; empty to list them.
        further: sentences about further cases with the same reason.
        id: anchor of the case on a page.
    """
    c, example = case.check, case.check.counterexample
    activations = [
        replace_record(a, outcome="fail") if (c.outcome, a.outcome) == ("xfail", "xfail") else a for a in case.activations
    ]
    failed = [a for a in activations if a.outcome == "fail"]
    origins, every, layers = [a for a in failed if a.local is not None], mistakes(activations), layers_of(activations)
    worst = _worst(origins)
    violations, (reason, details) = _violations(failed, origins, activations), _reason(c, failed)
    short = [line for finding in every for line in (finding.sentence, finding.repair) if line]
    saved = bool(headers) and c.outcome in ("fail", "crash")
    exposed = [a for a in case.activations if a.outcome != "not_observed"]
    of_network = exposed if c.check in _PARTIAL else case.activations
    return {
        "check": c,
        "subject": str(c.case),
        "verdict": Span(verdict(c), OUTCOME_TEXT[c.outcome].tone),
        "fails": c.outcome in FAILING,
        "passes": c.outcome == "pass",
        "reason": reason,
        "details": details,
        "same": same,
        "further": further,
        "id": id,
        "summary": short or violations or [reason],
        "failed": failed,
        "violations": violations,
        "mistakes": [finding.lines for finding in every],
        "errors": [_numbers(a) for a in worst],
        "remarks": list(_remarks(worst, origins, activations, layers)),
        "measured": _measured(c),
        "unseen": "" if same else _unseen(c, failed, activations),
        "exclusions": exclusions(c.excludes),
        "numbers": list(numbers_checked(c.excludes)),
        "detectable": [  # those that could be missed at some step come first
            (s.fault, f"{s.separable} of {s.places}", weakest(s))
            for s in sorted(c.excludes, key=lambda s: (s.separable == s.places, s.fault))
        ],
        "undetectable": undetectable(c.excludes),
        "smallest": smallest(c.check, example) if example and c.tried else "",
        "element": _element(example) if example else [],
        "located": _located(failed),
        "batch": _batch(example, failed, is_drawn=bool(c.tried)) if example else ("", []),
        "network": list(network(of_network)) if exposed else [],
        "command": command(c, headers),
        "script": example.script if example else "",
        "script_file": f"failures/{c.case.file_name}.py" if saved else "",
    }


def _reason(c: CheckRecord, failed: Sequence[ActivationRecord]) -> tuple[str, str]:
    """Return the first line of the reason, unless failing activations say it, and further lines, such as a traceback."""
    if c.outcome == "fail" and not c.tried and failed:
        return "", ""
    first, _, more = c.reason.rstrip().replace("\r\n", "\n").partition("\n")
    return first, more


def _measured(c: CheckRecord) -> str:
    """Return the median error, or the examples of a search, with sizes and duration."""
    if c.outcome == "pass" and c.tried:
        return f"{searched(c)}, {duration([c])}"
    if c.median_rms is None:
        return duration([c]) if c.outcome in FAILING else ""
    return f"median local error {sigma(c.median_rms)}{of_sizes([c])}, {duration([c])}"


def _unseen(c: CheckRecord, failed: Sequence[ActivationRecord], activations: Sequence[ActivationRecord]) -> str:
    """Return text on the activations that are not judged: the candidate does not expose them, or the check sets them aside."""
    if c.tried or not (c.outcome == "pass" or (failed and c.check == "values")):
        return ""
    return _PARTIAL.get(c.check) or not_exposed(activations)


def _violations(
    failed: Sequence[ActivationRecord], origins: Sequence[ActivationRecord], activations: Sequence[ActivationRecord]
) -> list[str]:
    """Return the first origin, with its reason or the unexposed steps before it, and the violations of the contract, in order."""
    texts = _reasons([a for a in failed if a.local is None], layers_of(activations))
    more = len(texts) - WORST
    texts = texts if more <= 0 else [*texts[:WORST], f"violations of the contract that only the results file has: {more}"]
    if not origins:
        return texts
    first, is_first = origins[0], origins[0] is failed[0]
    after = f": {first.reason}" if first.reason and not is_unnamed(first) else ""
    if not first.reason and not is_unnamed(first):
        before = possibly_before([first.activation], [a for a in activations if a.batch == first.batch])
        after = f". {before}" if before else ""
    which = "first origin of an error" if len(origins) > 1 else "origin of the error"
    text = f"{which}{'' if is_first else ' among the judged activations'}: {origin(first)}{after}"
    return [text, *texts] if is_first else [*texts, text]


def _reasons(failed: Sequence[ActivationRecord], layers: int) -> list[str]:
    """Return the reasons that no finding states, each with all activations that share it."""
    texts = []
    for reason in dict.fromkeys(a.reason for a in failed if a.reason and not is_unnamed(a)):
        alike = [a for a in failed if a.reason == reason]
        steps = tuple(dict.fromkeys(a.activation for a in alike))
        backward_of = {a.activation: a.backward_of for a in alike if a.backward_of}
        texts.append(f"{origin(alike[0]) if len(alike) == 1 else where(steps, layers, backward_of)}: {reason}")
    return texts


def _worst(origins: Sequence[ActivationRecord]) -> Sequence[ActivationRecord]:
    """Return the origins with the largest local RMS, in their given order; the first origin is always included.

    An exact activation has none: any error is beyond its limit, so it comes before all others.
    """
    others = sorted(origins[1:], key=lambda a: -math.inf if a.local is None or a.local.rms is None else -a.local.rms)[: WORST - 1]
    return [a for a in origins if a is origins[0] or any(a is other for other in others)]


def _numbers(a: ActivationRecord) -> Row:
    local, global_error = a.local, sigma(a.global_error.rms if a.global_error else None)
    if local is None or local.rms is None:
        return place(a), "differs" if local else "-", "-", "-", "-", global_error
    return place(a), sigma(local.rms), sigma(a.limits.get("rms")), sigma(local.max), sigma(a.limits.get("max")), global_error


def _remarks(
    worst: Sequence[ActivationRecord], origins: Sequence[ActivationRecord], activations: Sequence[ActivationRecord], layers: int
) -> Iterator[str]:
    """Yield the sentences below the table of errors."""
    if len(origins) > len(worst):
        yield f"{len(worst)} of {len(origins)} origins, the first and those with the largest local rms; the results file has all"
    if any(a.local is not None and (a.local.max or 0.0) > LARGEST for a in worst):
        yield f"{bounded(math.inf)} σ: more than float64's digits resolve, as where the correct result is 0"
    through = tuple(dict.fromkeys(a.activation for a in activations if a.reason.startswith(DIFFERENTIATED)))
    if through:
        yield f"{f'{len(through)} gradients' if len(through) > WORST else where(through, layers)}: {UNJUDGED_GRADIENTS}"
    if origins and origins[0].reason:  # it is stated with the first origin, for all with the same mistakes
        named = {fault.name for fault in origins[0].faults}
        worst = [a for a in worst[1:] if not named or {fault.name for fault in a.faults} != named]
    yield from _reasons(worst, layers)


def _element(example: CounterexampleRecord) -> list[Row]:
    """Return one wrong element: index, value, expected value (or value in the other run) and allowed difference."""
    p = example.place
    if p is None:
        return []
    value, expected = ("not finite" if v is None else f"{v:.9g}" for v in (p.found, p.expected))
    names = ("first run", "other run") if len(example.runs) > 1 else ("value", "expected")
    difference = "" if p.found is None or p.expected is None else f"{abs(p.found - p.expected):.3g}"
    index = f"{p.activation}[{', '.join(map(str, p.element))}]" if p.element else p.activation
    facts = {"where": index, names[0]: value, names[1]: expected, "difference": difference, "allowed": f"{p.allowed:.3g}"}
    return [(what, said) for what, said in facts.items() if said]


def _located(failed: Sequence[ActivationRecord]) -> list[tuple[str, list[Row]]]:
    """Return where the error is at the first and the worst other failing activations: its name, and a row for each axis."""
    scales = [(a, scale) for a in failed if (scale := scale_of(a))]
    worst = sorted(scales[1:], key=lambda pair: -math.inf if pair[0].excess is None else -pair[0].excess)[: _PLACES - 1]
    return [
        (place(a), [strip(s, scale) for s in (a.spread.strips if a.spread else ()) if s.size > 1])
        for a, scale in scales
        if a is scales[0][0] or any(a is other for other, _ in worst)
    ]


def _batch(example: CounterexampleRecord, failed: Sequence[ActivationRecord], *, is_drawn: bool) -> tuple[str, list[list[Token]]]:
    """Return the batch on which a check fails, coloured by the error of the first failing activation, with a legend.

    It is empty if the batch is a golden's and no error has a place in it.
    """
    first = failed[0] if failed else None
    scale = scale_of(first) if first else None
    errors = first.spread.tokens if first and first.spread and scale else ()
    if first is None or scale is None or not errors:
        return "", tokens(example, (), scale) if is_drawn else []
    reach = f"from {scale.rendered(scale.limit)}, pale, to {scale.rendered(scale.top)}, full"
    return f"Coloured by the error of {place(first)}: {reach}. Dashed tokens are masked.", tokens(example, errors, scale)


def command(c: CheckRecord, headers: Sequence[Header]) -> str:
    """Return the shell command that repeats a check; the inputs for a user's checkpoint are in the file that `replay` takes."""
    header = next((h for h in headers if c.golden in h.goldens), None)
    golden = recorded_as(c.golden, header.goldens[c.golden].source if header else "")
    network = ["--checkpoint", golden.removeprefix(PREFIX)] if golden.startswith(PREFIX) else ["--golden", golden]
    words = ["bert-conformance", "run", c.implementation, *network]
    words += ["--device", c.device] if c.device != "cpu" else []
    words += ["--dtype", c.dtype] if c.dtype != "float32" else []
    words += ["--check", c.check] if c.check != "values" else []
    words += [word for pattern in c.require for word in ("--require-activations", pattern)]
    words += ["--examples", str(header.examples)] if c.tried and header and header.examples != EXAMPLES else []
    words += ["--seed", str(header.seed)] if c.tried and header and header.seed else []
    return shlex.join(words)
