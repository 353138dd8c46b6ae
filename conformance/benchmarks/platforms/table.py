"""The lanes as Markdown tables."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from conformance.benchmarks.platforms.case import Ran
from conformance.benchmarks.platforms.found import ALARM, MISSED, PASSED, REDUCED, SAME, UNSUPPORTED, WRONG, Found

COLUMNS = (PASSED, SAME, REDUCED, UNSUPPORTED, ALARM, MISSED)
SHORT = {PASSED: "passed", SAME: "same", REDUCED: "reduced", UNSUPPORTED: "unsupported", ALARM: "**alarm**", MISSED: "**missed**"}


def lines(found: Sequence[Found], machine: Sequence[str]) -> Iterator[str]:
    """Yield the machine, one row per lane, one row per candidate and format, and the reasons."""
    yield from machine
    yield ""
    yield from _summary(found)
    yield ""
    yield from _by_candidate(found)
    yield ""
    yield from _not_run(found)
    yield from _notes(found)
    yield from _reasons("Unsupported", found, (UNSUPPORTED,))
    yield from _reasons("Wrong", found, WRONG)


def _summary(found: Sequence[Found]) -> Iterator[str]:
    titles = ("lane", "what is set", "torch's kernels", "cases", *COLUMNS, "seconds")
    yield _row(titles)
    yield _row(["---"] * len(titles))
    for one in found:
        if one.lacking:
            yield _row([one.lane.name, one.lane.setting, "not run", *[""] * (len(COLUMNS) + 2)])
            continue
        counts = [str(one.counts[kind]) for kind in COLUMNS]
        seconds = f"{sum(ran.seconds for ran in one.ran):.0f}"
        yield _row([one.lane.name, one.lane.setting, one.capability, str(len(one.ran)), *counts, seconds])


def _by_candidate(found: Sequence[Found]) -> Iterator[str]:
    """Yield one row per candidate and format, with one column per golden that lists the kind of the case in each lane."""
    cases: dict[tuple[str, str], dict[str, list[tuple[str, str]]]] = {}
    for one in found:
        for ran in one.ran:
            row = cases.setdefault((ran.candidate, ran.dtype), {})
            row.setdefault(ran.golden, []).append((_state(one, ran), one.lane.name))
    goldens = list(dict.fromkeys(ran.golden for one in found for ran in one.ran))
    yield _row(["candidate", "format", *(f"`{golden}`" for golden in goldens)])
    yield _row(["---"] * (2 + len(goldens)))
    for (candidate, dtype), row in cases.items():
        yield _row([candidate, dtype, *(_cell(row.get(golden, [])) for golden in goldens)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _state(one: Found, ran: Ran) -> str:
    kind = one.kind(ran)
    return f"as {ran.same_as}" if kind == SAME else SHORT[kind]


def _cell(states: Sequence[tuple[str, str]]) -> str:
    """Return text such as `passed: default, aten-avx2; as default: onednn-avx2`; a single word if all lanes are of one kind."""
    kinds = {kind: [lane for k, lane in states if k == kind] for kind, _ in states}
    if len(kinds) == 1:
        return next(iter(kinds))
    return "; ".join(f"{kind}: {', '.join(lanes)}" for kind, lanes in kinds.items())


def _not_run(found: Sequence[Found]) -> Iterator[str]:
    missing = [one for one in found if one.lacking]
    if missing:
        yield "Not run here:"
        yield ""
        yield from (f"- {one.lane.name}: {one.lacking}" for one in missing)
        yield ""


def _notes(found: Sequence[Found]) -> Iterator[str]:
    noted = [(one.lane.name, note) for one in found for note in one.notes]
    if noted:
        yield "Of the machine:"
        yield ""
        yield from (f"- {lane}: {note}" for lane, note in noted)
        yield ""


def _reasons(title: str, found: Sequence[Found], kinds: Sequence[str]) -> Iterator[str]:
    """Yield each reason once, with its cases and lanes."""
    entries = sorted(
        (ran.reason.splitlines()[0] if ran.reason else one.kind(ran), one.lane.name, ran.case)
        for one in found
        for ran in one.ran
        if one.kind(ran) in kinds
    )
    if not entries:
        return
    yield f"{title}:"
    yield ""
    for reason, same in groupby(entries, key=lambda item: item[0]):
        of = list(same)
        lanes, cases = sorted({lane for _, lane, _ in of}), sorted({case for _, _, case in of})
        yield f"- {reason} ({_listed(cases, 'cases')}; {_listed(lanes, 'lanes')})"
    yield ""


def _listed(names: Sequence[str], what: str, most: int = 6) -> str:
    return ", ".join(names) if len(names) <= most else f"{len(names)} {what}"
