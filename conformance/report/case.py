"""View of one check of one candidate: mistakes, one wrong element, location of the error, and the command that repeats it."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace as replace_record

from conformance.checks.check import EXAMPLES
from conformance.goldens.custom_golden import PREFIX, recorded_as
from conformance.judge.backward_of_wrong_steps import UNJUDGED_GRADIENTS
from conformance.judge.evidence import DIFFERENTIATED
from conformance.report.axis import LARGEST, bounded, sigma
from conformance.report.coverage_sentences import (
    duration,
    exclusions,
    mistakes,
    numbers_checked,
    of_sizes,
    origin,
    place,
    rendered,
    searched,
    smallest,
    subject,
    undetectable,
    verdict,
    weakest,
)
from conformance.report.document import Row, Span
from conformance.report.finding_sentences import repair, sentence, where
from conformance.report.findings import is_unnamed, layers_of
from conformance.report.places import Scale, Token, network, scale_of, strip, tokens
from conformance.report.unexposed_steps import not_exposed, possibly_before
from conformance.results.outcomes import FAILING, OUTCOME_TEXT
from conformance.results.records import ActivationRecord, CaseRecords, CheckRecord, Header

_PARTIAL = {
    "outputs": "this check judges the outputs alone, from the token ids",
    "stages": "this check judges the embeddings, the layers' outputs and the outputs alone, each from the one before it",
}  # checks for which activations that the candidate may expose are set aside
_PLACES = 3  # maximum number of origins with strips, so that a page with many failures stays small
WORST = 5  # maximum number of failing activations, and of mistakes, outside of a page; the results file has all of them


@dataclass(frozen=True)
class CaseView:
    """What a report says of one case.

    Attributes:
        case: records of the case.
        headers: headers of all runs, for the command that repeats the check.
        same: a sentence that replaces the mistakes, since another case of the report has them; empty to show them.
        further: sentences about further cases with the same reason.
        id: anchor of the case on a page.
    """

    case: CaseRecords
    headers: Sequence[Header] = ()
    same: str = ""
    further: tuple[str, ...] = ()
    id: str = ""

    @property
    def check(self) -> CheckRecord:
        """The record of the check."""
        return self.case.check

    @property
    def subject(self) -> str:
        """The name of the case."""
        return subject(self.check)

    @property
    def verdict(self) -> Span:
        """The outcome with the coverage."""
        return Span(verdict(self.check), OUTCOME_TEXT[self.check.outcome].tone)

    @property
    def fails(self) -> bool:
        """Whether the candidate does not conform, or could not be judged."""
        return self.check.outcome in FAILING

    @property
    def passes(self) -> bool:
        """Whether the check passes."""
        return self.check.outcome == "pass"

    @property
    def activations(self) -> Sequence[ActivationRecord]:
        """The records of the activations; those that are known to fail count as failing ones."""
        known = self.check.outcome == "xfail"
        return [replace_record(a, outcome="fail") if known and a.outcome == "xfail" else a for a in self.case.activations]

    @property
    def failed(self) -> list[ActivationRecord]:
        """The failing activations."""
        return [a for a in self.activations if a.outcome == "fail"]

    @property
    def reason(self) -> tuple[str, str]:
        """The first line of the reason, unless failing activations say it, and further lines, such as a traceback."""
        if not self.check.reason or (self.check.outcome == "fail" and not self.check.tried and self.failed):
            return "", ""
        first, _, more = self.check.reason.rstrip().replace("\r\n", "\n").partition("\n")
        return first, more

    @property
    def measured(self) -> str:
        """The median error, or the examples of a search, with sizes and duration."""
        if self.passes and self.check.tried:
            return f"{searched(self.check)}, {duration([self.check])}"
        if self.check.median_rms is None:
            return duration([self.check]) if self.fails else ""
        return f"median local error {sigma(self.check.median_rms)}{of_sizes([self.check])}, {duration([self.check])}"

    @property
    def unseen(self) -> str:
        """Text on the activations that are not judged: the candidate does not expose them, or the check sets them aside."""
        if self.same or not (self.passes or (self.failed and self.check.check == "values")) or self.check.tried:
            return ""
        return _PARTIAL.get(self.check.check) or not_exposed(self.activations)

    @property
    def violations(self) -> list[str]:
        """The first origin and the violations of the contract, in the order of computation."""
        refused, origins = [a for a in self.failed if a.local is None], self.origins
        found = _first(_reasons(refused, self.layers))
        if origins:
            is_first = origins[0] is self.failed[0]
            which = "first origin of an error" if len(origins) > 1 else "origin of the error"
            first = f"{which}{'' if is_first else ' among the judged activations'}: {_located(origins[0], self.activations)}"
            found = [first, *found] if is_first else [*found, first]
        return found

    @property
    def layers(self) -> int:
        """The number of encoder layers."""
        return layers_of(self.activations)

    @property
    def mistakes(self) -> list[list[str]]:
        """The lines about each mistake, the largest first."""
        return [rendered(finding, self.layers) for finding in mistakes(self.activations)]

    @property
    def summary(self) -> list[str]:
        """Each mistake with its place, and its repair; else what is wrong otherwise."""
        found = [(sentence(f, self.layers), repair(f)) for f in mistakes(self.activations)]
        return [line for lines in found for line in lines if line] or self.violations or [self.reason[0]]

    @property
    def origins(self) -> list[ActivationRecord]:
        """The activations at which errors begin."""
        return [a for a in self.failed if a.local is not None]

    @property
    def errors(self) -> list[Row]:
        """The rows of the worst origins in the order of computation."""
        return [_numbers(a) for a in _worst(self.origins)]

    @property
    def remarks(self) -> list[str]:
        """Sentences below the table of errors."""
        worst = _worst(self.origins)
        of = (
            f"{len(worst)} of {len(self.origins)} origins, the first and those with the largest local rms; the results file has all"
        )
        huge = any(a.local is not None and (a.local.max or 0.0) > LARGEST for a in worst)
        digits = f"{bounded(math.inf)} σ: more than float64's digits resolve, as where the correct result is 0"
        through = tuple(dict.fromkeys(a.activation for a in self.activations if a.reason.startswith(DIFFERENTIATED)))
        counted = f"{len(through)} gradients" if len(through) > WORST else where(through, self.layers)
        return [
            *([of] if len(self.origins) > len(worst) else []),
            *([digits] if huge else []),
            *([f"{counted}: {UNJUDGED_GRADIENTS}"] if through else []),
            *_reasons(_unstated(worst), self.layers),
        ]

    @property
    def exclusions(self) -> list[str]:
        """Sentences on the mistakes that a pass excludes."""
        return exclusions(self.check.excludes)

    @property
    def numbers(self) -> list[Row]:
        """The numbers that a pass confirms."""
        return list(numbers_checked(self.check.excludes))

    @property
    def detectable(self) -> list[Row]:
        """A row for each mistake that changes a judged activation; those that could be missed at some step come first."""
        found = sorted(self.check.excludes, key=lambda s: (s.separable == s.places, s.fault))
        return [(s.fault, f"{s.separable} of {s.places}", weakest(s)) for s in found]

    @property
    def undetectable(self) -> Sequence[str]:
        """The mistakes that change no judged activation."""
        return undetectable(self.check.excludes)

    @property
    def smallest(self) -> str:
        """The shape of the smallest failing batch of a search."""
        found = self.check.counterexample
        return smallest(self.check.check, found) if found and self.check.tried else ""

    @property
    def element(self) -> list[Row]:
        """One wrong element: index, value, expected value (or value in the other run) and allowed difference."""
        found = self.check.counterexample
        p = found.place if found else None
        if found is None or p is None:
            return []
        value, expected = ("not finite" if v is None else f"{v:.9g}" for v in (p.found, p.expected))
        names = ("first run", "other run") if len(found.runs) > 1 else ("found", "expected")
        difference = "" if p.found is None or p.expected is None else f"{abs(p.found - p.expected):.3g}"
        index = f"{p.activation}[{', '.join(map(str, p.element))}]" if p.element else p.activation
        facts = {"where": index, names[0]: value, names[1]: expected, "difference": difference, "allowed": f"{p.allowed:.3g}"}
        return [(what, said) for what, said in facts.items() if said]

    @property
    def located(self) -> list[tuple[str, list[Row]]]:
        """Where the error is at the first and the worst other failing activations: its name, and a row for each axis."""
        scales = [(a, scale) for a in self.failed if (scale := scale_of(a))]
        worst = sorted(scales[1:], key=lambda p: -_excess(p[0]))[: _PLACES - 1]
        kept = [(a, scale) for a, scale in scales if a is scales[0][0] or any(a is other for other, _ in worst)]
        return [(place(a), [strip(s, scale) for s in (a.spread.strips if a.spread else ()) if s.size > 1]) for a, scale in kept]

    @property
    def batch(self) -> tuple[str, list[list[Token]]]:
        """The batch on which it fails, coloured by the error of the first origin, with a legend; empty if neither is known."""
        found = self.check.counterexample
        first = self.failed[0] if self.failed else None
        scale = scale_of(first) if first else None
        errors = first.spread.tokens if first and first.spread and scale else ()
        if found is None or not (errors or self.check.tried):
            return "", []
        return _legend(first, scale) if first and scale and errors else "", tokens(found, errors, scale)

    @property
    def network(self) -> list[tuple[str, bool, str, list[Row]]]:
        """The tables of all activations, unless none is exposed."""
        exposed = [a for a in self.case.activations if a.outcome != "not_observed"]
        shown = exposed if self.check.check in _PARTIAL else self.case.activations
        return list(network(shown)) if exposed else []

    @property
    def command(self) -> str:
        """The shell command that repeats the check."""
        return command(self.check, self.headers)

    @property
    def script(self) -> tuple[str, str]:
        """The script that reproduces the failure, and its path in the folder of the results file if it is saved there."""
        found = self.check.counterexample
        saved = bool(self.headers) and self.check.outcome in ("fail", "crash")
        return (found.script, f"failures/{self.check.case.file_name}.py" if saved else "") if found else ("", "")


def _legend(a: ActivationRecord, scale: Scale) -> str:
    reach = f"from {scale.rendered(scale.limit)}, pale, to {scale.rendered(scale.top)}, full"
    return f"Coloured by the error of {place(a)}: {reach}. Dashed tokens are masked."


def _unstated(origins: Sequence[ActivationRecord]) -> Sequence[ActivationRecord]:
    """Return the origins whose reasons are not stated with the first origin: all but that one and those with the same mistakes."""
    if not origins or not origins[0].reason:
        return origins
    named = {fault.name for fault in origins[0].faults}
    return [a for a in origins[1:] if not named or {fault.name for fault in a.faults} != named]


def _located(a: ActivationRecord, activations: Sequence[ActivationRecord]) -> str:
    """Return the name of the first origin, with its reason if no mistake states it, or the unexposed steps before it."""
    if is_unnamed(a) or a.reason:
        return origin(a) + (f": {a.reason}" if a.reason and not is_unnamed(a) else "")
    before = possibly_before([a.activation], [other for other in activations if other.batch == a.batch])
    return f"{origin(a)}{f'. {before}' if before else ''}"


def _worst(origins: Sequence[ActivationRecord]) -> Sequence[ActivationRecord]:
    """Return the origins with the largest local RMS, in their given order; the first origin is always included.

    An exact activation has none: any error is beyond its limit, so it comes before all others.
    """
    others = sorted(origins[1:], key=lambda a: -math.inf if a.local is None or a.local.rms is None else -a.local.rms)[: WORST - 1]
    return [a for a in origins if a is origins[0] or any(a is other for other in others)]


def _excess(a: ActivationRecord) -> float:
    return math.inf if a.excess is None else a.excess


def _reasons(failed: Sequence[ActivationRecord], layers: int) -> list[str]:
    """Return the reasons that no finding states, each with all activations that share it."""
    texts = []
    for reason in dict.fromkeys(a.reason for a in failed if a.reason and not is_unnamed(a)):
        alike = [a for a in failed if a.reason == reason]
        steps = tuple(dict.fromkeys(a.activation for a in alike))
        backward_of = {a.activation: a.backward_of for a in alike if a.backward_of}
        texts.append(f"{origin(alike[0]) if len(alike) == 1 else where(steps, layers, backward_of)}: {reason}")
    return texts


def _first(texts: list[str]) -> list[str]:
    """Return the first texts, and how many there are more."""
    more = len(texts) - WORST
    return texts if more <= 0 else [*texts[:WORST], f"violations of the contract that only the results file has: {more}"]


def _numbers(a: ActivationRecord) -> Row:
    local, global_error = a.local, sigma(a.global_error.rms if a.global_error else None)
    if local is None or local.rms is None:
        return place(a), "differs" if local else "-", "-", "-", "-", global_error
    return place(a), sigma(local.rms), sigma(a.limits.get("rms")), sigma(local.max), sigma(a.limits.get("max")), global_error


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
