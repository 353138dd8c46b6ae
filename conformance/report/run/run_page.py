"""The page of a run: who conforms, where the first wrong one goes wrong, and why. A pure function of the records."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from msgspec.structs import replace as replace_record

from conformance.report.findings import in_words
from conformance.report.html.page import fragment, page
from conformance.report.run.failure import Failure, failure, first_line
from conformance.report.run.histogram import histogram, pooled
from conformance.report.run.matrix import Group, groups, matrix, power
from conformance.report.run.network import Walk, walk
from conformance.report.words import duration, exclusions, headline, searched, verdict
from conformance.results.outcomes import FAILING
from conformance.results.records import CaseRecords, Header, Results
from conformance.results.result import Result
from conformance.results.to_records import footer, results_of

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
class Passed:
    """A check that passes, is skipped or fails as is known; `failure` is what is known of that."""

    check: str
    outcome: str
    rendered: str
    failure: Failure | None = None


@dataclass(frozen=True)
class Card:
    """One candidate in one setting."""

    group: Group
    failures: tuple[Failure, ...]
    others: tuple[Passed, ...]
    walk: Walk | None
    noise: Markup | None
    median: str
    duration: str
    exclusions: tuple[str, ...]


@dataclass(frozen=True)
class Wrong:
    """A candidate that does not conform: each reason with where it shows, and how many are not shown."""

    name: str
    reasons: tuple[tuple[str, tuple[Group, ...]], ...]
    more: int


def _values(results: Results) -> dict[str, object]:
    found = groups(results.cases)
    return {
        "counts": headline(results.footer or footer(results.checks), results.remarks),
        "wrong": _wrong(found),
        "matrix": matrix(found),
        "cards": [_card(g, results.headers) for g in found],
        "power": power(results.cases),
        "headers": [h for n, h in enumerate(results.headers) if h not in results.headers[:n]],
        "candidates": sorted(_versions(results)),
        "stored": sorted({name: golden for h in results.headers for name, golden in h.goldens.items()}.items()),
        "notes": results.remarks,
        "goldens": sorted({g.setting[0] for g in found}),
        "devices": sorted({g.setting[1] for g in found}),
        "dtypes": sorted({g.setting[2] for g in found}),
        "outcomes": sorted({g.outcome for g in found}),
        "conforms": not any(g.tone == "bad" for g in found) and any(g.tone == "good" for g in found) and results.sound,
    }


def _versions(results: Results) -> set[tuple[str, str, str, str]]:
    """Name, distribution, version and origin of every candidate that was judged and is registered."""
    judged = {check.implementation for check in results.checks}
    rendered = ((name, i) for header in results.headers for name, i in header.implementations.items() if name in judged)
    return {(name, i.distribution, i.version, i.origin) for name, i in rendered}


def _title(results: Results) -> str:
    names = list(dict.fromkeys(c.implementation for c in results.checks))
    bad = {g.implementation for g in groups(results.cases) if g.tone == "bad"}
    judged = any(g.tone == "bad" and g.outcome != "error" for g in groups(results.cases))
    verb = f"{'does' if len(bad) == 1 else 'do'} not conform" if judged else "could not be judged"
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
        found = in_words(case.activations) if c.check == "values" else ()
        if found:
            yield from ("; ".join((m.sentence, *m.anatomy)) for m in found)
        else:
            yield f"{'' if c.check == 'values' else f'{c.check}: '}{first_line(c.reason) or c.outcome}"


def _card(g: Group, headers: Sequence[Header]) -> Card:
    rendered = max(g.cases, key=lambda case: (case.check.check == "values", len(case.activations)))
    activations, check = rendered.activations, rendered.check
    counts = pooled([a.spread.counts for a in activations if a.spread and a.outcome == "pass"])
    return Card(
        group=g,
        failures=tuple(failure(c, headers) for c in g.cases if c.check.outcome in FAILING),
        others=tuple(_passed(c, headers) for c in g.cases if c.check.outcome not in FAILING),
        walk=walk(activations) if any(a.outcome != "not_observed" for a in activations) else None,
        noise=histogram(counts) if any(counts) else None,
        median="" if check.median_rms is None else f"{check.median_rms:.2f}",
        duration=duration([c.check for c in g.cases]),
        exclusions=tuple(exclusions(check.excludes)) if check.outcome == "pass" else (),
    )


def _passed(case: CaseRecords, headers: Sequence[Header]) -> Passed:
    c = case.check
    rendered = c.reason if c.outcome != "pass" else searched(c) if c.tried else verdict(c)
    return Passed(c.check, c.outcome, rendered, failure(_as_failing(case), headers) if c.outcome == "xfail" else None)


def _as_failing(case: CaseRecords) -> CaseRecords:
    """What is known to fail, reported as if it were not known."""
    failing = tuple(replace_record(a, outcome="fail") if a.outcome == "xfail" else a for a in case.activations)
    return CaseRecords(replace_record(case.check, outcome="fail"), failing)
