"""Document of a comparison of two systems by cosine similarity. Pure functions."""

from collections.abc import Sequence

from conformance.judge.cosines import RankChange, RankComparison
from conformance.report.document import Blocks, Column, Document, Headline, Paragraph, tabled

_COLUMNS = (
    *("texts", "cosine A", "cosine B", Column("rank A", spare=1), Column("rank B", spare=1)),
    *("changes order with", "unexplained", "error / limit"),
)
_WIDTH = 24  # maximum length of a text in the table


def document(found: RankComparison, names: Sequence[str], dtypes: Sequence[str], texts: Sequence[str]) -> Document:
    """Return the document: verdict, subject of the comparison, error of each system against the oracle, pairs that change rank."""
    verdict = Headline(_verdict(found), "good" if found.explained else "bad")
    blocks: Blocks = (
        verdict,
        Paragraph(f"{len(texts)} texts, {found.pairs} pairs ranked by cosine similarity; Kendall's τ = {found.tau:.4g}"),
        *(Paragraph(_system(*each)) for each in zip("AB", names, dtypes, found.excess, strict=True)),
        *tabled(_COLUMNS, [("", [_row(change, texts) for change in found.changes])]),
    )
    return Document(verdict.text, blocks, verdict.tone)


def _verdict(found: RankComparison) -> str:
    if not found.changes:
        return "no pair of texts changes rank"
    many = f"{len(found.changes)} of {found.pairs} pairs of texts change rank, in {found.discordant} changes of order"
    if found.explained:
        return f"{many}; rounding explains all of them"
    return f"{many}; rounding does not explain {found.unexplained} of these"


def _system(letter: str, name: str, dtype: str, excess: float) -> str:
    within = "within what rounding explains" if excess <= 1.0 else "beyond what rounding explains"
    return f"{letter}: {name}, {dtype}; the largest error of a cosine against the oracle is {excess:.3g} of its limit, {within}"


def _row(change: RankChange, texts: Sequence[str]) -> tuple[str, ...]:
    pair = " / ".join(f"{i + 1} {_short(texts[i])}" for i in change.texts)
    cosines, ranks = (f"{c:.6f}" for c in change.cosines), map(str, change.ranks)
    return (pair, *cosines, *ranks, str(change.discordant), str(change.unexplained), f"{change.excess:.3g}")


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
