"""Blocks of one check of one candidate: mistakes, one wrong element, location of the error, and the command that repeats it."""

import math
import shlex
from collections.abc import Iterator, Sequence

from msgspec.structs import replace as replace_record

from conformance.checks.check import EXAMPLES
from conformance.goldens.custom_golden import PREFIX, recorded_as
from conformance.judge.backward_of_wrong_steps import UNJUDGED_GRADIENTS
from conformance.judge.evidence import DIFFERENTIATED
from conformance.report.axis import LARGEST, bounded, sigma
from conformance.report.coverage_sentences import (
    duration,
    exclusion_lists,
    mistakes,
    numbers_checked,
    of_sizes,
    origin,
    place,
    rendered,
    searched,
    smallest,
    subject,
    verdict,
)
from conformance.report.document import (
    Abridged,
    Block,
    Blocks,
    Code,
    Column,
    Figures,
    Folded,
    Heading,
    Items,
    Lists,
    Paragraph,
    Tokens,
    tabled,
)
from conformance.report.finding_sentences import where
from conformance.report.findings import is_unnamed, layers_of
from conformance.report.run.network import network
from conformance.report.run.places import histogram, placed_error, pooled, scale_of, tokens
from conformance.report.run.repeated import shared_wrong_length
from conformance.report.unexposed_steps import not_exposed, unexposed_steps
from conformance.results.outcomes import FAILING, OUTCOME_TEXT
from conformance.results.records import ActivationRecord, CaseRecords, CheckRecord, Header, PlaceRecord

NUMBERS = (
    "numbers checked",
    "value",
    "confirmed within",
    Column("least visible at", is_text=True),
    Column("mistake", is_text=True),
)
_PARTIAL = {
    "outputs": "this check judges the outputs alone, from the token ids",
    "stages": "this check judges the embeddings, the layers' outputs and the outputs alone, each from the one before it",
}  # checks for which activations that the candidate may expose are set aside
_PLACES = 3  # maximum number of origins with strips, so that a page with many failures stays small
_WORST = 5  # maximum number of failing activations, and of mistakes, in text output; the results file has all of them


def case_blocks(case: CaseRecords, headers: Sequence[Header] = (), *, close: bool = False, same: str = "") -> Iterator[Block]:
    """Yield the blocks of one case: outcome, mistakes, and the details that only a page shows.

    Args:
        case: records of the case.
        headers: headers of all runs, for the command that repeats the check.
        close: whether the heading follows the preceding block without a blank line.
        same: a sentence that replaces the mistakes, since another case of the report has them; empty to show them.
    """
    check = case.check
    failed = [a for a in case.activations if a.outcome == "fail"]
    yield Heading(subject(check), verdict(check), OUTCOME_TEXT[check.outcome].tone, close)
    if check.reason and (check.outcome != "fail" or check.tried or not failed):
        yield from _reason(check.reason)
    if check.note:
        yield Paragraph(check.note)
    if check.tried and check.counterexample:
        yield Abridged((), (Code("\n".join(smallest(check.check, check.counterexample)), wrapped=True),))
    if same:
        yield Paragraph(same)
        yield from _through_wrong_steps(case.activations, layers_of(case.activations))
    elif failed:
        yield from _failures(failed, case.activations)
        if check.check == "values" and (unseen := _unseen(case)):
            yield Paragraph(unseen, "quiet")
    elif check.outcome == "pass" and check.tried:
        yield Paragraph(f"{searched(check)}, {duration([check])}")
    elif check.outcome == "pass" and check.median_rms is not None:
        yield Paragraph(_median(check))
        if unseen := _unseen(case):
            yield Paragraph(unseen)
        if check.excludes:
            whole, short = (Lists(tuple(exclusion_lists(check.excludes, whole=whole))) for whole in (True, False))
            yield Abridged((whole,), (short,))
            yield from tabled(NUMBERS, [("", list(numbers_checked(check.excludes)))], most=None)
    if check.outcome == "xfail" and case.activations:
        yield Abridged((Folded("What is known to fail", tuple(_known(case))),))
    yield Abridged(tuple(_details(case, headers)))
    if check.counterexample:
        yield from _script(check, check.counterexample.script, saved=bool(headers) and has_script(check))
    yield Abridged(tuple(_network(case)) if _exposed(case.activations) else ())


def _unseen(case: CaseRecords) -> str:
    """Return text on the activations that are not judged: the candidate does not expose them, or the check sets them aside."""
    return _PARTIAL.get(case.check.check) or not_exposed(case.activations)


def _script(check: CheckRecord, script: str, *, saved: bool) -> Iterator[Block]:
    """Yield the script that reproduces the failure; if it is also a file, Markdown has only its name, at the end."""
    what, code = "a script that reproduces the failure", Code(script, "python")
    if not saved:
        yield Folded(what, (code,), long=True)
        return
    yield Abridged((Folded(f"{what} ({script_file(check)}, in the folder of the results file)", (code,), long=True),))


def script_file(check: CheckRecord) -> str:
    """Return the path of the script that reproduces the failure of a check, in the folder of the results file."""
    return f"failures/{check.case.file_name}.py"


def has_script(check: CheckRecord) -> bool:
    """Return whether a run saves a script that reproduces the failure of a check."""
    return check.counterexample is not None and check.outcome in ("fail", "crash")


def first_line(text: str) -> str:
    """Return the first line of a text; in a reason, further lines are details or a traceback."""
    return (text.strip().splitlines() or [""])[0]


def _median(check: CheckRecord) -> str:
    return f"median local error {sigma(check.median_rms)}{of_sizes([check])}, {duration([check])}"


def _reason(reason: str) -> Iterator[Block]:
    """Yield the first line of a reason as a sentence, and further lines, such as a traceback, as preformatted text."""
    first, _, more = reason.rstrip().replace("\r\n", "\n").partition("\n")
    yield Paragraph(first)
    if more:
        yield Abridged((Folded("details", (Code(more),)),), (Code(more),))


def _failures(failed: Sequence[ActivationRecord], activations: Sequence[ActivationRecord]) -> Iterator[Block]:
    """Yield the first origin and the violations of the contract, then the mistakes, then the origins with their errors."""
    layers = layers_of(activations)
    refused, origins = [a for a in failed if a.local is None], [a for a in failed if a.local is not None]
    shared = shared_wrong_length(refused) if len(refused) > 1 else ""
    every = "every activation has" if len(refused) == len(_exposed(activations)) else f"{len(refused)} activations have"
    violations = [f"{every} {shared}"] if shared else _first(_reasons(refused, layers))
    if origins:
        is_first = origins[0] is failed[0]
        among = "" if is_first else " among the judged activations"
        which = "first origin of an error" if len(origins) > 1 else "origin of the error"
        first = f"{which}{among}: {_located(origins[0], activations)}"
        violations = [first, *violations] if is_first else [*violations, first]
    yield from map(Paragraph, violations)
    items = tuple(tuple(rendered(finding, layers)) for finding in mistakes(activations))
    if len(items) > 1:
        yield Paragraph("mistakes, by how far the error exceeds its limit:")
    more = len(items) - _WORST
    if more > 0:
        counted = Items(((f"and {more} more mistake{'s' if more > 1 else ''} in the results file",),), apart=True)
        yield Abridged((Items(items),), (Items(items[:_WORST], apart=True), counted))
    elif items:
        yield Items(items, apart=True)
    yield from _origins(origins)
    yield from _through_wrong_steps(activations, layers)
    yield from (Paragraph(text) for text in _reasons(_unstated(_worst(origins)), layers))


def _exposed(activations: Sequence[ActivationRecord]) -> list[ActivationRecord]:
    """Return the activations that the candidate exposes."""
    return [a for a in activations if a.outcome != "not_observed"]


def _unstated(origins: Sequence[ActivationRecord]) -> Sequence[ActivationRecord]:
    """Return the origins whose reasons are not stated with the first origin: all but that one and those with the same mistakes."""
    if not origins or not origins[0].reason:
        return origins
    named = {fault.name for fault in origins[0].faults}
    return [a for a in origins[1:] if not named or {fault.name for fault in a.faults} != named]


def _located(a: ActivationRecord, activations: Sequence[ActivationRecord]) -> str:
    """Return the name of the first origin, with its reason if no mistake states it, or the unexposed steps before it."""
    reason = "" if is_unnamed(a) else a.reason
    of_batch = [other for other in activations if other.batch == a.batch]
    before = "" if a.reason or is_unnamed(a) else str(unexposed_steps(a.activation, of_batch))
    return f"{origin(a)}{f': {reason}' if reason else ''}{f', {before}' if before else ''}"


def _origins(origins: Sequence[ActivationRecord]) -> Iterator[Block]:
    """Yield the table of the worst origins in the order of computation."""
    worst, head = _worst(origins), "activation"
    if len(origins) > len(worst):
        of = f"{len(worst)} of {len(origins)} origins, the first and those with the largest local rms"
        yield Paragraph(f"{of}, in the order of computation; the results file has all:")
    elif len(worst) > 1:
        head = "origins, in order"
    yield from tabled((head, "local rms", "limit", "max", "limit", "global rms"), [("", [_numbers(a) for a in worst])])
    if any(a.local is not None and (a.local.max or 0.0) > LARGEST for a in worst):
        yield Paragraph(f"{bounded(math.inf)} σ: more than float64's digits resolve, as where the correct result is 0")


def _worst(origins: Sequence[ActivationRecord]) -> Sequence[ActivationRecord]:
    """Return the origins with the largest local RMS, in their given order; the first origin is always included.

    An exact activation has none: any error is beyond its limit, so it comes before all others.
    """
    others = sorted(origins[1:], key=lambda a: -math.inf if a.local is None or a.local.rms is None else -a.local.rms)
    others = others[: _WORST - 1]
    return [a for a in origins if a is origins[0] or any(a is other for other in others)]


def _badness(a: ActivationRecord) -> float:
    return -(a.excess if a.excess is not None else float("inf"))


def _reasons(failed: Sequence[ActivationRecord], layers: int) -> list[str]:
    """Return the reasons that no finding states, each with all activations that share it."""
    texts = []
    for reason in dict.fromkeys(a.reason for a in failed if a.reason and not is_unnamed(a)):
        alike = [a for a in failed if a.reason == reason]
        steps = tuple(dict.fromkeys(a.activation for a in alike))
        backward_of = {a.activation: a.backward_of for a in alike if a.backward_of}
        texts.append(f"{origin(alike[0]) if len(alike) == 1 else where(steps, layers, backward_of)}: {reason}")
    return texts


def _through_wrong_steps(activations: Sequence[ActivationRecord], layers: int) -> Iterator[Block]:
    """Yield which gradients are not judged because a forward step is wrong; text output only counts them if they are many."""
    through = tuple(dict.fromkeys(a.activation for a in activations if a.reason.startswith(DIFFERENTIATED)))
    if through:
        full = Paragraph(f"{where(through, layers)}: {UNJUDGED_GRADIENTS}")
        short = Paragraph(f"{len(through)} gradients: {UNJUDGED_GRADIENTS}") if len(through) > _WORST else full
        yield Abridged((full,), (short,))


def _first(texts: Sequence[str]) -> Sequence[str]:
    """Return the first texts, and how many there are more."""
    more = len(texts) - _WORST
    return texts if more <= 0 else [*texts[:_WORST], f"violations of the contract that only the results file has: {more}"]


def _numbers(a: ActivationRecord) -> tuple[str, ...]:
    local, global_error = a.local, sigma(a.global_error.rms if a.global_error else None)
    if local is None or local.rms is None:
        return place(a), "differs" if local else "-", "-", "-", "-", global_error
    return place(a), sigma(local.rms), sigma(a.limits.get("rms")), sigma(local.max), sigma(a.limits.get("max")), global_error


def _known(case: CaseRecords) -> Iterator[Block]:
    """Yield the blocks about known failures, as for other failures."""
    failing = tuple(replace_record(a, outcome="fail") if a.outcome == "xfail" else a for a in case.activations)
    failed = [a for a in failing if a.outcome == "fail"]
    if failed:
        yield from _failures(failed, failing)
        yield from _placed(failed, case.check)


def _details(case: CaseRecords, headers: Sequence[Header]) -> Iterator[Block]:
    """Yield the details that only a page shows."""
    check, found = case.check, case.check.counterexample
    if check.outcome in FAILING:
        yield Paragraph(_median(check) if check.median_rms is not None else duration([check]), "quiet")
        if found and found.place:
            yield from _element(found.place, of_two_runs=len(found.runs) > 1)
        yield from _placed([a for a in case.activations if a.outcome == "fail"], check)
        yield Heading("To run it again", level=4)
        yield Code(command(check, headers))


def _placed(failed: Sequence[ActivationRecord], check: CheckRecord) -> Iterator[Block]:
    """Yield the location of the error at the first and the worst other failing activations, and the tokens of a failing batch."""
    placed = [(a, scale) for a in failed if (scale := scale_of(a))]
    worst = sorted(placed[1:], key=lambda p: _badness(p[0]))[: _PLACES - 1]
    for a, scale in placed:
        if a is placed[0][0] or any(a is other for other, _ in worst):
            yield from placed_error(a, scale)
    others = sum(a.local is not None for a in failed) - min(len(placed), _PLACES)
    if others and placed:
        yield Paragraph(
            f"Where the error sits at {others} more origin{'s' * (others > 1)} is not shown, so that the page stays small: only "
            "the first origin and the worst others are shown. JSON has more.",
            "quiet",
        )
    first, scale = placed[0] if placed and placed[0][0] is failed[0] else (None, None)
    errors = first.spread.tokens if first and first.spread else []
    found = check.counterexample
    if found is None or not (errors or check.tried):
        return
    title = smallest(check.check, found)[0].replace("smallest", "Smallest", 1) if check.tried else "A batch on which it fails"
    yield Heading(title, level=4)
    if first and scale and errors:
        reach = f"from {scale.rendered(scale.limit)}, pale, to {scale.rendered(scale.top)}, full"
        yield Paragraph(f"Coloured by the error of {place(first)}: {reach}. Dashed tokens are masked.", "quiet")
    yield Tokens(tokens(found, errors, scale))


def _network(case: CaseRecords) -> Iterator[Block]:
    """Yield the tables of all activations, which only a page shows."""
    shown = _exposed(case.activations) if case.check.check in _PARTIAL else case.activations
    parts: Blocks = network(shown)
    if case.check.outcome in FAILING:
        yield Heading("From input to output", level=4)
        yield from parts
    else:
        yield Folded("From input to output, activation by activation", parts)
    counts = pooled([a.spread.counts for a in case.activations if a.spread and a.outcome == "pass"])
    if any(counts):
        caption = (
            "Residuals of all activations that pass, in σ; the line is a normal distribution of one σ. A narrower histogram is an "
            "implementation that is more accurate than the model of rounding assumes; this is never a failure."
        )
        yield Folded("How well the predicted noise fits", (Figures(((histogram(counts), caption),)),))


def _element(p: PlaceRecord, *, of_two_runs: bool) -> Iterator[Block]:
    """Yield one wrong element: index, value, expected value (or value in the other run) and allowed difference."""
    found, expected = ("not finite" if v is None else f"{v:.9g}" for v in (p.found, p.expected))
    names = ("first run", "other run") if of_two_runs else ("found", "expected")
    facts = {"where": f"{p.activation}[{', '.join(map(str, p.element))}]" if p.element else p.activation}
    facts |= dict(zip(names, (found, expected), strict=True))
    facts |= {} if p.found is None or p.expected is None else {"difference": f"{abs(p.found - p.expected):.3g}"}
    yield Heading("One of the wrong elements", level=4)
    yield Lists.of_terms(facts | {"allowed": f"{p.allowed:.3g}"})


def command(c: CheckRecord, headers: Sequence[Header]) -> str:
    """Return the shell command that repeats a check; the inputs for a user's checkpoint are in the file that `replay` takes."""
    header = next((h for h in headers if c.golden in h.goldens), None)
    golden = recorded_as(c.golden, header.goldens[c.golden].source if header else "")
    network = ["--checkpoint", golden.removeprefix(PREFIX)] if golden.startswith(PREFIX) else ["--golden", golden]
    words = ["bert-conformance", "run", "-i", c.implementation, *network]
    words += ["--device", c.device] if c.device != "cpu" else []
    words += ["--dtype", c.dtype] if c.dtype != "float32" else []
    words += ["--check", c.check] if c.check != "values" else []
    words += [word for pattern in c.require for word in ("--require-activations", pattern)]
    words += ["--examples", str(header.examples)] if c.tried and header and header.examples != EXAMPLES else []
    words += ["--seed", str(header.seed)] if c.tried and header and header.seed else []
    return shlex.join(words)
