"""Document of a run: counts, verdicts by candidate and setting, then the cases, worst first, then notes. Pure functions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from conformance.glossary.terms import TERMS
from conformance.numerics.functions import FUNCTIONS
from conformance.report.case import case_view
from conformance.report.coverage_sentences import duration, headline, number, of_sizes, padding, searched
from conformance.report.document import Document, Row, Span
from conformance.report.drawings import sigma
from conformance.report.findings import mistakes
from conformance.report.repeated import by_reason, further, same_as_values, setting, values_by_setting
from conformance.results.outcomes import ORDER, OUTCOME_TEXT
from conformance.results.records import CaseRecords, CheckRecord, FunctionRecord, Header, MachineRecord, Results
from conformance.results.result import Result
from conformance.results.to_records import footer, records_of

LEGEND = ("sigma", "origin", "local rms", "max", "limit", "global rms", "amplitude", "z", "estimate")
PADDING = "padding is not judged: a correct candidate may compute anything there; attention to padding must be zero"

Setting = tuple[str, ...]  # candidate, golden, device, dtype


def document(results: Results) -> Document:
    """Return the document of a run."""
    groups = _by_setting(results.checks)
    counts, header = results.footer or footer(results.checks), results.header
    tones = {OUTCOME_TEXT[checks[0].outcome].tone for checks in groups.values()}
    title, tone = _title(results, groups), "bad" if "bad" in tones else "good" if "good" in tones and results.sound else ""
    sections = _sections(results)
    view = {
        "results": results,
        "started": " ".join(("bert-conformance", *(filter(None, (header.suite, header.started)) if header else ()))),
        "headline": headline(counts, results.remarks),
        "remarks": [Span(str(note), "bad" if note.grave else "odd") for note in results.remarks],
        "ran": counts.ran,
        "matrix": _matrix(groups),
        "verdicts": [_listed(key, checks) for key, checks in groups.items()] if len(groups) > 1 else [],
        "sections": sections,
        "wrong": [s for s in sections if s.get("fails") and not s["same"]],
        "checks": [_row(c) for c in sorted(results.checks, key=lambda c: ORDER.index(c.outcome))],
        "unconfirmed": _unconfirmed(results),
        "terms": _terms(results),
        "padding": _padding(results),
        "environments": _environments(results),
    }
    return Document("run", view, title, tone, lambda: structured(results))


def case_document(result: Result) -> Document:
    """Return the document of one case."""
    return Document("one_case", {"c": case_view(records_of(result))})


def structured(results: Results) -> dict[str, Any]:
    """Return the results as an object for JSON.

    - `headers`: software and machine of each run; empty if the file has no header.
    - `footer`: `declared`, `ran`, `outcomes` and `exit_code` of all runs together.
    - `notes`: missing, contradictory and duplicate results, among others; each has `kind`, `text`, and `grave`, which tells whether
      the note rules out success.
    - `cases`, in the order in which they ran, each with
        - `check` and `activations`: the records, with the names of the results file (`run --schema` prints its JSON Schema);
        - `mistakes`, worst first: `sentence`, `evidence` and `cause` in words; `fault`, as in an activation's record (`name`,
          `z`, `estimate`, …), null for an unidentified mistake; `steps` at which the mistake acts; `activations` that it explains;
          `others`, the mistakes that cannot be distinguished from it; `anatomy`, the description of an unidentified mistake, and
          `hidden`, the steps before it that are not exposed, in words; `estimates`, the fitted numbers in words; `excess`, the
          largest error divided by its limit.
    """
    return {
        "headers": results.headers,
        "footer": results.footer or footer(results.checks),
        "notes": [{"kind": note.kind, "text": note.text, "grave": note.grave} for note in results.remarks],
        "cases": [
            {
                "check": case.check,
                "activations": case.activations,
                "mistakes": [
                    {"sentence": f.sentence, "evidence": f.evidence, "cause": f.cause} | vars(f) for f in mistakes(case.activations)
                ],
            }
            for case in results.cases
        ],
    }


def _by_setting(checks: Sequence[CheckRecord]) -> dict[Setting, list[CheckRecord]]:
    """Return the checks of each candidate in each setting, worst first; skipped ones come last.

    The groups are in the order of their worst checks; ties are in the order in which they ran.
    """
    groups: dict[Setting, list[CheckRecord]] = {}
    for check in sorted(checks, key=lambda c: (c.outcome == "skip", ORDER.index(c.outcome), c.check != "values")):
        groups.setdefault(setting(check), []).append(check)
    order = {key: i for i, key in enumerate(dict.fromkeys(map(setting, checks)))}
    return {key: groups[key] for key in sorted(groups, key=lambda k: (ORDER.index(groups[k][0].outcome), order[k]))}


def _title(results: Results, groups: Mapping[Setting, Sequence[CheckRecord]]) -> str:
    """Return the verdict on the run."""
    worst = [(key[0], checks[0].outcome) for key, checks in groups.items()]
    names = dict.fromkeys(c.implementation for c in results.checks)
    bad = {name for name, outcome in worst if OUTCOME_TEXT[outcome].tone == "bad"}
    wrong = {name for name, outcome in worst if name in bad and OUTCOME_TEXT[outcome].tone == "bad" and outcome != "error"}
    outcomes = {c.outcome for c in results.checks}
    if not results.sound:
        fine = "incomplete; no failure in what was judged"
    else:
        fine = "known failures only" if "xfail" in outcomes else "all conforms" if outcomes - {"skip"} else "nothing was judged"
    if len(names) == 1:
        (name,) = names
        return f"{name} {'does not conform' if wrong else 'could not be judged'}" if bad else f"{name}: {fine}"
    judged = {name for name, outcome in worst if outcome != "skip"}
    of = f" of {len(names)} candidates"
    counts = [f"{len(wrong)}{of} {'does' if len(wrong) == 1 else 'do'} not conform"] if wrong else []
    counts += [f"{len(bad - wrong)}{'' if wrong else of} could not be judged"] if bad - wrong else []
    counts += [] if bad else [f"{len(judged)}{of}: {fine}"]
    counts += [f"{len(names) - len(judged)} skipped"] if len(judged) < len(names) else []
    return ", ".join(counts)


def _matrix(groups: Mapping[Setting, Sequence[CheckRecord]]) -> tuple[list[str], list[Row]]:
    """Return the verdicts, with candidates as rows, worst first, and settings as columns; no rows if there is a single verdict."""
    settings = sorted({key[1:] for key in groups})
    rows: list[Row] = [
        (name, *(_verdict(groups.get((name, *each), ())) for each in settings)) for name in dict.fromkeys(key[0] for key in groups)
    ]
    return ["candidate", *map(", ".join, settings)], rows if len(groups) > 1 else []


def _listed(key: Setting, checks: Sequence[CheckRecord]) -> Row:
    """Return the row of a candidate in one setting, for a terminal, on which a matrix may be too wide."""
    verdict = _verdict(checks)
    return Span(verdict.text, verdict.tone), key[0], ", ".join(key[1:]), verdict.note


def _verdict(checks: Sequence[CheckRecord]) -> Span:
    """Return the worst outcome of checks in one setting.

    Its note is the reason why all were skipped; else the coverage of the check `values` or of the one that judged most, and counts.
    """
    if not checks:
        return Span("not run", "quiet")
    text, skipped = OUTCOME_TEXT[checks[0].outcome], sum(c.outcome == "skip" for c in checks)
    widest = max(checks, key=lambda c: (c.check == "values", c.judged))
    which = "" if widest.check == "values" else f" in the check {widest.check}"
    declared = [c for c in checks if c.declared]
    notes = (
        f"{widest.judged} of {widest.activations} activations{which}" if widest.activations else "",
        f"{sum(c.executed for c in declared)} of {len(declared)} checks" if len(declared) > 1 else "",
        f"{skipped} skipped" if skipped else "",
    )
    note = checks[0].reason.partition("\n")[0] if skipped == len(checks) else ", ".join(filter(None, notes))
    return Span(f"{text.symbol} {text.of_check}", text.tone, note=note)


def _sections(results: Results) -> list[dict[str, Any]]:
    """Return the views of the cases: single ones or those of one reason, worst first, then grouped passes."""
    apart, together = _grouped(results.cases)
    repeated, values = by_reason(apart), values_by_setting(apart)
    sections: list[dict[str, Any]] = []
    for case in sorted(apart, key=lambda c: ORDER.index(c.check.outcome)):
        alike = repeated.get(id(case), [case])
        if case is alike[0]:
            same, more = same_as_values(case, values), list(further(case, alike[1:]))
            sections.append(case_view(case, results.headers, same, more, f"case-{len(sections) + 1}"))
    return sections + [_passes(checks, f"case-{n}") for n, checks in enumerate(together, len(sections) + 1)]


def _grouped(cases: Sequence[CaseRecords]) -> tuple[list[CaseRecords], list[list[CheckRecord]]]:
    """Split cases into those shown singly and groups of passes of one candidate in one setting, other than the check `values`."""
    groups: dict[Setting, list[CheckRecord]] = {}
    for case in cases:
        if case.check.outcome == "pass" and case.check.check != "values":
            groups.setdefault(setting(case.check), []).append(case.check)
    together = [group for group in groups.values() if len(group) > 1]
    grouped = {id(check) for group in together for check in group}
    return [case for case in cases if id(case.check) not in grouped], together


def _passes(checks: Sequence[CheckRecord], id: str) -> dict[str, Any]:
    """Return the view of several passing checks of one candidate in one setting, with a sentence on the searches among them."""
    candidate, *where = setting(checks[0])
    searches, text = [c for c in checks if c.tried], ""
    if searches:
        worst = max(searches, key=lambda c: c.worst or 0.0)
        largest = f", the largest error {worst.worst:.2g} of its limit ({worst.check})" if worst.worst else ""
        many = "1 search" if len(searches) == 1 else f"{len(searches)} searches"
        tried = number(sum(c.tried for c in searches), "example")
        text = f"{tried} in {many}{of_sizes(searches)}{largest}, {duration(checks)}"
    verdict = Span(f"passes {len(checks)} more checks", "good")
    names = [c.check for c in checks]
    return {"subject": f"{candidate} on {', '.join(where)}", "verdict": verdict, "checks": names, "searches": text, "id": id}


def _row(c: CheckRecord) -> Row:
    tried = searched(c) if c.outcome == "pass" else number(c.tried, "example")
    judged = f"{c.judged} of {c.activations}" if c.activations else tried if c.tried else ""
    return str(c.case), c.outcome, judged, "" if c.median_rms is None else sigma(c.median_rms)


def _unconfirmed(results: Results) -> list[str]:
    """Return for each user's checkpoint on which a check passed a sentence about properties that a pass does not confirm."""
    passed = {check.golden for check in results.checks if check.outcome == "pass"}
    goldens = {(n, g.unconfirmed) for h in results.headers for n, g in h.goldens.items() if g.unconfirmed and n in passed}
    return [f"{name}: {said}" for name, said in sorted(goldens)]


def _terms(results: Results) -> list[tuple[str, str]]:
    """Return the terms of the columns and sentences about failures, with their meanings; none without a failure."""
    if not any(a.outcome == "fail" and a.local is not None for a in results.activations):
        return []
    return [(name, TERMS[name].meaning) for name in LEGEND]


def _padding(results: Results) -> str:
    """Return a remark on padding if a failing batch has any."""
    masks = (c.counterexample.batch.get("attention_mask") for c in results.checks if c.counterexample)
    return PADDING if any(any(map(any, padding(mask))) for mask in masks if mask) else ""


def _environments(results: Results) -> list[list[Row]]:
    """Return the facts on software and machine of each run."""
    headers = [h for n, h in enumerate(results.headers) if h not in results.headers[:n]]
    judged = {check.implementation for check in results.checks}
    return [list(_facts(header, judged)) for header in headers]


def _facts(header: Header, judged: set[str]) -> Iterator[Row]:
    """Yield the fields of a header that are known, the versions of candidates and goldens, and the arithmetic of the machine."""
    for name, value in asdict(header).items():
        if value not in (None, "", {}) and not isinstance(value, dict | MachineRecord):
            yield name.replace("_", " "), str(value)
    for name, candidate in header.implementations.items():
        if name in judged:
            yield name, f"{candidate.distribution} {candidate.version}, {candidate.origin}"
    yield from ((name, "an object whose version is not known") for name in sorted(judged - header.implementations.keys()))
    for name, g in header.goldens.items():
        digests = f"SHA-256 of inputs {g.stored_digest}, of weights {g.weights_digest}"
        yield f"golden {name}", f"version {g.version}, {g.source}; {digests}"
    if machine := header.machine:
        bits = ", ".join(f"{name} {'unknown' if bits is None else bits}" for name, bits in machine.products.items())
        settings = ", ".join(f"{name} {value}" for name, value in machine.settings.items())
        errors = ", ".join(f"{name} {_largest_error(name, f)}" for name, f in machine.functions.items())
        yield "float32", f"{machine.instruction_set}; effective bits of products: {bits}; {settings}"
        yield "functions", f"largest errors, absolute or in ULP: {errors}; for gelu and gelu_tanh: the error of their erf or tanh"


def _largest_error(name: str, measured: FunctionRecord) -> str:
    """Return the absolute error of a function with a bounded scale, otherwise the error in ULP."""
    is_absolute = name not in FUNCTIONS or FUNCTIONS[name].has_zero
    value = measured.absolute if is_absolute else measured.ulp
    return "not finite" if value is None else f"{value:.2g}" if is_absolute else f"{value:.2g} ULP"
