"""One check that fails, as the page shows it: its mistakes, one number of it, where it sits, its tokens, how to see it again."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from conformance.checks.catalogue import PUBLISHED
from conformance.checks.search.plan import EXAMPLES
from conformance.goldens.custom_golden import PREFIX, recorded_as
from conformance.report.findings import in_words
from conformance.report.run.histogram import histogram
from conformance.report.run.places import Scale, StripView, Token, scale_of, strips, tokens
from conformance.report.words import place, smallest
from conformance.results.records import ActivationRecord, CaseRecords, CheckRecord, Header, PlaceRecord
from conformance.results.result import NamedFinding

_PLACES = 3  # activations whose strips are shown: the first origin and the worst


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
    mistakes: tuple[NamedFinding, ...]
    where: tuple[Where, ...]
    smallest: str
    element: Element | None
    tokens: Sequence[Sequence[Token]]
    heat: str
    script: str
    command: str


def failure(case: CaseRecords, headers: Sequence[Header]) -> Failure:
    """Of a case that does not pass; `headers` are those of all runs."""
    c, found = case.check, case.check.counterexample
    failed = [a for a in case.activations if a.outcome == "fail"]
    placed = [a for a in failed if scale_of(a)]
    first = placed[0] if placed and placed[0] is failed[0] else None
    scale = scale_of(first) if first else None
    errors = first.spread.tokens if first and first.spread else []
    return Failure(
        check=c.check,
        outcome=c.outcome,
        reason=first_line(c.reason),
        traceback=c.reason if "\n" in c.reason.strip() else "",
        mistakes=in_words(case.activations),
        where=tuple(_where(a) for a in _worst(placed)),
        smallest=_capital(smallest(found)[0]) if found and c.tried else "",
        element=_element(found.place, of_two_runs=len(found.runs) > 1) if found and found.place else None,
        tokens=tokens(found, errors, scale) if found and (errors or c.tried) else (),
        heat=_legend(first, scale) if first and scale and errors else "",
        script=found.script if found else "",
        command=_command(c, headers),
    )


def _worst(placed: Sequence[ActivationRecord]) -> list[ActivationRecord]:
    """The first, then the worst of the others."""
    others = sorted(placed[1:], key=lambda a: -(a.excess if a.excess is not None else float("inf")))
    return [*placed[:1], *others][:_PLACES]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _legend(a: ActivationRecord, scale: Scale) -> str:
    reach = f"from {scale.rendered(scale.limit)}, pale, to {scale.rendered(scale.top)}, full"
    return f"Coloured by the error of {place(a)}: {reach}. Dashed tokens are masked."


def _element(p: PlaceRecord, *, of_two_runs: bool) -> Element:
    found, expected = ("not finite" if v is None else f"{v:.9g}" for v in (p.found, p.expected))
    apart = "" if p.found is None or p.expected is None else f"{abs(p.found - p.expected):.3g}"
    where = f"{p.activation}[{', '.join(map(str, p.element))}]" if p.element else p.activation
    return Element(where, found, expected, apart, f"{p.allowed:.3g}", of_two_runs)


def _where(a: ActivationRecord) -> Where:
    scale = scale_of(a)
    assert scale is not None
    assert a.spread is not None
    drawn = histogram(a.spread.counts) if any(a.spread.counts) else None
    return Where(place(a), tuple(strips(a.spread, scale)), drawn, scale.rendered(scale.limit) if a.spread.unit == "sigma" else "")


def _command(c: CheckRecord, headers: Sequence[Header]) -> str:
    """What makes the check again; the inputs of a checkpoint of one's own are in the file that `replay` takes."""
    header = next((h for h in headers if c.golden in h.goldens), None)
    golden = recorded_as(c.golden, header.goldens[c.golden].source if header else "")
    network = ["--checkpoint", golden.removeprefix(PREFIX)] if golden.startswith(PREFIX) else ["--golden", golden]
    words = ["bert-conformance", "run", "-i", c.implementation, *network]
    words += ["--device", c.device] if c.device != "cpu" else []
    words += ["--dtype", c.dtype] if c.dtype != "float32" else []
    words += ["--check", c.check] if c.check not in ("values", PUBLISHED) else []
    words += [word for pattern in c.require for word in ("--require-activations", pattern)]
    words += ["--examples", str(header.examples)] if c.tried and header and header.examples != EXAMPLES else []
    words += ["--seed", str(header.seed)] if c.tried and header and header.seed else []
    return shlex.join(words)


def first_line(text: str) -> str:
    """Of a reason; what follows is a traceback."""
    return (text.strip().splitlines() or [""])[0]
