"""The page of a run: who conforms, where the first wrong one goes wrong, and why. A pure function of the records."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from msgspec.structs import replace as replace_record

from conformance.goldens.own import PREFIX
from conformance.records import FAILING, ActivationRecord, CaseRecords, CheckRecord, Header, PlaceRecord, Results
from conformance.report.findings import Finding, cause, evidence, findings, layers_of, sentence
from conformance.report.html.page import fragment, page
from conformance.report.run.histogram import histogram, pooled
from conformance.report.run.matrix import Group, groups, matrix, power
from conformance.report.run.network import Walk, walk
from conformance.report.run.places import Scale, StripView, Token, scale_of, strips, tokens
from conformance.report.telling import footer, results_of
from conformance.report.words import exclusions, headline, place, searched, smallest, verdict
from conformance.result import Result
from conformance.search.plan import EXAMPLES

_PLACES = 3  # activations whose strips are shown: the first origin and the worst
_REASONS = 5  # of a candidate in the summary; its card has them all


def results_page(results: Results) -> str:
    """The whole page."""
    return page("results.html", _title(results), **_values(results))


def results_fragment(results: Results) -> str:
    """The same for a notebook."""
    return fragment("results.html", _title(results), **_values(results))


def result_fragment(result: Result) -> str:
    """Of one case."""
    return results_fragment(results_of([result]))


@dataclass(frozen=True)
class Mistake:
    """A finding in words."""

    sentence: str
    evidence: str
    cause: str
    anatomy: tuple[str, ...]


@dataclass(frozen=True)
class Where:
    """Where the error of one activation sits."""

    place: str
    strips: tuple[StripView, ...]
    histogram: Markup | None
    limit: str


@dataclass(frozen=True)
class Element:
    """One number that is wrong: where, what it is, what it should be (or was in the other run), how far apart they may be."""

    place: str
    found: str
    expected: str
    apart: str
    allowed: str
    of_two_runs: bool


@dataclass(frozen=True)
class Failure:
    """A check that does not pass."""

    check: str
    outcome: str
    reason: str
    traceback: str
    mistakes: tuple[Mistake, ...]
    where: tuple[Where, ...]
    smallest: str
    element: Element | None
    tokens: Sequence[Sequence[Token]]
    heat: str
    script: str
    command: str


@dataclass(frozen=True)
class Passed:
    """A check that passes, is skipped or fails as is known; `failure` is what is known of that."""

    check: str
    outcome: str
    told: str
    failure: Failure | None = None


@dataclass(frozen=True)
class Card:
    """One candidate in one setting."""

    group: Group
    verdict: str
    failures: tuple[Failure, ...]
    others: tuple[Passed, ...]
    walk: Walk | None
    noise: Markup | None
    median: str
    seconds: float
    exclusions: tuple[str, ...]


@dataclass(frozen=True)
class Wrong:
    """A candidate that does not conform: each reason with where it shows, and how many are not told."""

    name: str
    reasons: tuple[tuple[str, tuple[Group, ...]], ...]
    more: int


def _values(results: Results) -> dict[str, object]:
    found = groups(results.cases)
    by_tone: dict[str, list[str]] = {}
    table = matrix(found)
    for name, of_one in table.rows:
        tones = {g.tone for g in of_one if g}
        by_tone.setdefault("bad" if "bad" in tones else "good" if "good" in tones else "odd", []).append(name)
    return {
        "counts": headline(results.footer or footer(results.checks), results.notes),
        "by_tone": by_tone,
        "wrong": _wrong(found),
        "matrix": table,
        "cards": [_card(g, results.headers) for g in found],
        "power": power(results.cases),
        "headers": [h for n, h in enumerate(results.headers) if h not in results.headers[:n]],
        "stored": sorted({name: golden for h in results.headers for name, golden in h.goldens.items()}.items()),
        "notes": results.notes,
        "goldens": sorted({g.setting[0] for g in found}),
        "devices": sorted({g.setting[1] for g in found}),
        "dtypes": sorted({g.setting[2] for g in found}),
        "outcomes": sorted({g.outcome for g in found}),
        "conforms": not any(g.tone == "bad" for g in found) and any(g.tone == "good" for g in found) and results.sound,
    }


def _title(results: Results) -> str:
    names = list(dict.fromkeys(c.implementation for c in results.checks))
    bad = {g.implementation for g in groups(results.cases) if g.tone == "bad"}
    verb = f"{'does' if len(bad) == 1 else 'do'} not conform"
    if len(names) == 1:
        return f"{names[0]} {verb}" if bad else f"{names[0]}: {_fine(results)}"
    return f"{len(bad)} of {len(names)} candidates {verb}" if bad else f"{len(names)} candidates: {_fine(results)}"


def _fine(results: Results) -> str:
    """What to call a run in which nothing fails."""
    outcomes = {c.outcome for c in results.checks}
    if not results.sound:
        return "incomplete, nothing of it fails"
    return "nothing was judged" if not outcomes - {"skip"} else "fails as is known" if "xfail" in outcomes else "all conforms"


def _wrong(found: Sequence[Group]) -> list[Wrong]:
    """Candidates in the order of their worst group; reasons in the order of their size."""
    reasons: dict[str, dict[str, list[Group]]] = {}
    for g in found:
        if g.tone == "bad":
            for why in dict.fromkeys(_reasons(g)):
                reasons.setdefault(g.implementation, {}).setdefault(why, []).append(g)
    return [
        Wrong(name, tuple((why, tuple(groups)) for why, groups in list(of_one.items())[:_REASONS]), max(len(of_one) - _REASONS, 0))
        for name, of_one in reasons.items()
    ]


def _reasons(g: Group) -> Iterable[str]:
    """The mistakes of the judgement; of other checks what they say."""
    for case in g.cases:
        c = case.check
        if c.outcome not in FAILING:
            continue
        mistakes = _mistakes(case.activations)
        if c.check == "values" and mistakes:
            yield from ("; ".join((m.sentence, *m.anatomy)) for m in mistakes)
        else:
            yield f"{'' if c.check == 'values' else f'{c.check}: '}{_first_line(c.reason) or c.outcome}"


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0]


def _card(g: Group, headers: Sequence[Header]) -> Card:
    told = next((c for c in g.cases if c.check.check == "values"), g.cases[0])
    activations, check = told.activations, told.check
    counts = pooled([a.spread.counts for a in activations if a.spread and a.outcome == "pass"])
    failures = tuple(_failure(c, headers) for c in g.cases if c.check.outcome not in ("pass", "skip", "xfail"))
    others = tuple(_passed(c, headers) for c in g.cases if c.check.outcome in ("pass", "skip", "xfail"))
    return Card(
        g,
        verdict(check),
        failures,
        others,
        walk(activations) if any(a.outcome != "not_observed" for a in activations) else None,
        histogram(counts) if any(counts) else None,
        "" if check.median_rms is None else f"{check.median_rms:.2f}",
        sum(c.check.seconds for c in g.cases),
        tuple(exclusions(check.excludes)) if check.outcome == "pass" else (),
    )


def _passed(case: CaseRecords, headers: Sequence[Header]) -> Passed:
    c = case.check
    told = c.reason if c.outcome != "pass" else searched(c) if c.tried else verdict(c)
    return Passed(c.check, c.outcome, told, _failure(_as_failing(case), headers) if c.outcome == "xfail" else None)


def _as_failing(case: CaseRecords) -> CaseRecords:
    """What is known to fail, told as if it were not known."""
    failing = tuple(replace_record(a, outcome="fail") if a.outcome == "xfail" else a for a in case.activations)
    return CaseRecords(replace_record(case.check, outcome="fail"), failing)


def _failure(case: CaseRecords, headers: Sequence[Header]) -> Failure:
    c, found = case.check, case.check.counterexample
    failed = [a for a in case.activations if a.outcome == "fail"]
    shown = [a for a in failed if scale_of(a)]
    first = shown[0] if shown and failed and shown[0] is failed[0] else None
    scale = scale_of(first) if first else None
    errors = first.spread.tokens if first and first.spread else []
    heat = _legend(first, scale) if first and scale and errors else ""
    worst = sorted(shown, key=lambda a: -(a.excess if a.excess is not None else float("inf")))
    chosen = list(dict.fromkeys(place(a) for a in [*shown[:1], *worst]))[:_PLACES]
    return Failure(
        c.check,
        c.outcome,
        _first_line(c.reason),
        c.reason if "\n" in c.reason.strip() else "",
        _mistakes(case.activations),
        tuple(_where(a) for name in chosen for a in shown if place(a) == name),
        _capital(smallest(found)[0]) if found and c.tried else "",
        _element(found.place, of_two_runs=len(found.runs) > 1) if found and found.place else None,
        tokens(found, errors, scale) if found and (errors or c.tried) else (),
        heat,
        found.script if found else "",
        _command(c, headers),
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _legend(a: ActivationRecord, scale: Scale) -> str:
    reach = f"from {scale.told(scale.limit)}, pale, to {scale.told(scale.top)}, full"
    return f"Coloured by the error of {place(a)}: {reach}. Dashed tokens are masked."


def _element(p: PlaceRecord, *, of_two_runs: bool) -> Element:
    found, expected = ("not finite" if v is None else f"{v:.9g}" for v in (p.found, p.expected))
    apart = "" if p.found is None or p.expected is None else f"{abs(p.found - p.expected):.3g}"
    where = f"{p.activation}[{', '.join(map(str, p.element))}]" if p.element else p.activation
    return Element(where, found, expected, apart, f"{p.allowed:.3g}", of_two_runs)


def _mistakes(activations: Sequence[ActivationRecord]) -> tuple[Mistake, ...]:
    layers = layers_of(activations)
    return tuple(_mistake(f, layers) for f in findings(activations))


def _mistake(f: Finding, layers: int) -> Mistake:
    return Mistake(sentence(f, layers), evidence(f), cause(f), f.anatomy)


def _where(a: ActivationRecord) -> Where:
    scale = scale_of(a)
    assert scale is not None
    assert a.spread is not None
    drawn = histogram(a.spread.counts) if any(a.spread.counts) else None
    return Where(place(a), tuple(strips(a.spread, scale)), drawn, scale.told(scale.limit) if a.spread.unit == "sigma" else "")


def _command(c: CheckRecord, headers: Sequence[Header]) -> str:
    """What makes the check again; the inputs of a checkpoint of one's own are in the file that `replay` takes."""
    header = next((h for h in headers if c.golden in h.goldens), None)
    source = header.goldens[c.golden].source if header else ""
    network = ["--checkpoint", source.removeprefix(PREFIX)] if source.startswith(PREFIX) else ["--golden", c.golden]
    words = ["bert-conformance", "run", "-i", c.implementation, *network]
    words += ["--device", c.device] if c.device != "cpu" else []
    words += ["--dtype", c.dtype] if c.dtype != "float32" else []
    words += ["--check", c.check] if c.check != "values" else []
    words += ["--examples", str(header.examples)] if c.tried and header and header.examples != EXAMPLES else []
    words += ["--seed", str(header.seed)] if c.tried and header and header.seed else []
    return shlex.join(words)
