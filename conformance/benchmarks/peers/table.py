"""The table of tools, as JSON, as a page, and as in `conformance/MEASUREMENTS.md`."""

import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import msgspec

from conformance.benchmarks.peers.candidates import GOLDENS
from conformance.benchmarks.peers.measure import LAYERS, PeerVerdict, Row
from conformance.benchmarks.subject import BATCH, LENGTH

RESULTS = Path(__file__).with_name("peers.json")
PAGE = Path(__file__).with_name("RESULTS.md")
COMMAND = "python -m conformance.benchmarks.peers --write"
CANDIDATES = ("repeated", "SDPA", "epsilon", "tanh-GELU")
# The page of measurements shows the tools that report something about a candidate.
SHORT = ("assert_close", "DebugMode", "TorchLens", "Polygraphy", "msprobe", "bert-conformance, full")


@dataclass(frozen=True)
class Table:
    """The rows, with the environment in which they were measured."""

    processor: str
    threads: int
    python: str
    torch: str
    transformers: str
    rows: list[Row]

    @classmethod
    def of(cls, rows: list[Row], processor: str, threads: int) -> "Table":
        """Return a table of rows that were measured in this environment."""
        versions = (platform.python_version(), metadata.version("torch"), metadata.version("transformers"))
        return cls(processor, threads, *versions, rows)


def read(path: Path = RESULTS) -> Table:
    """Return the committed table."""
    return msgspec.json.decode(path.read_bytes(), type=Table)


def write(table: Table) -> None:
    """Save the table as JSON and as a page, replacing the previous files."""
    RESULTS.write_text(json.dumps(asdict(table), indent=2) + "\n", "utf-8")
    PAGE.write_text("\n".join(page(table)) + "\n", "utf-8")


def short(table: Table) -> Iterator[str]:
    """Yield lines of Markdown for `conformance/MEASUREMENTS.md`."""
    yield "| tool | times a plain pass | MiB above it | MB written | SDPA | epsilon | tanh-GELU |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for row in table.rows:
        if row.peer in SHORT:
            cells = [f"{row.peer} {row.version or ''}".strip(), *_cost(row)[::2], _written(row), *_rendered(row, CANDIDATES[1:])]
            yield _line(cells if row.ratio else [cells[0], row.reason, *[""] * 5])


def page(table: Table) -> Iterator[str]:
    """Yield lines of Markdown: every row with its settings, and the wrong verdicts."""
    yield "# Other tools"
    yield ""
    yield f"Made by `{COMMAND}` with the extra `peers`: {table.processor}, {table.threads} threads, Python {table.python},"
    yield f"torch {table.torch}, transformers {table.transformers}."
    yield ""
    yield f"Cost: a network of base width ({LAYERS} layers, batch {BATCH}, length {LENGTH}, float32) is compared with itself,"
    yield "with all passes that the tool needs for it, as a ratio to the plain forward pass in the same process: the median of the"
    yield "repeats, the least and the largest. Each tool has a process of its own, since some change torch for good. Memory is the"
    yield "peak resident size above that of a plain pass, the tool's import included. Written is what lies on disk afterwards."
    yield "A ratio may be another at another depth: those of bert-conformance at twelve layers are in [cost.json](../cost.json)."
    yield ""
    goldens = " and ".join(f"`{golden}`" for golden in GOLDENS)
    yield f"Reported right, of {len(GOLDENS)} networks ({goldens}), with Hugging Face's eager run as the reference:"
    yield ""
    yield "- *repeated*, the same again, and *SDPA*, its other attention, are correct: no difference is reported."
    yield "- *epsilon*, 1e-5 for 1e-12 in one LayerNorm, and *tanh-GELU* for erf-GELU in one layer: that is reported first."
    yield ""
    yield _line(["tool", "package", "wall", "CPU", "memory, MiB", "written, MB", *CANDIDATES, "settings"])
    yield _line(["---"] * (7 + len(CANDIDATES)))
    for row in table.rows:
        package = f"{row.package} {row.version or ''}".strip()
        cells = [*_cost(row), _written(row), *_rendered(row, CANDIDATES)] if row.ratio else [row.reason, *[""] * 7]
        yield _line([row.peer, package, *cells, row.settings])
    yield ""
    yield "Reported wrong:"
    yield ""
    for row in table.rows:
        for golden, found in (row.verdicts or {}).items():
            for candidate, verdict in found.items():
                if not verdict.right:
                    yield f"- {row.peer}, `{golden}`, {candidate}: {_said(verdict)}."


def _cost(row: Row) -> list[str]:
    """Return the wall, CPU and memory cells of a row."""
    if row.ratio is None or row.memory is None:
        return [""] * 3
    r = row.ratio
    return [f"{r.wall:.3g} ({r.least:.3g} to {r.largest:.3g})", f"{r.cpu:.3g}", f"{row.memory:.0f}"]


def _written(row: Row) -> str:
    return f"{(row.written or 0) / 1e6:.1f}"


def _rendered(row: Row, candidates: Sequence[str]) -> list[str]:
    """Return the number of networks for which the verdict on each candidate is right."""
    if not row.verdicts:
        return ["captures only"] * len(candidates)
    return [f"{sum(found[c].right for found in row.verdicts.values())} of {len(row.verdicts)}" for c in candidates]


def _said(verdict: PeerVerdict) -> str:
    return f"first difference at `{verdict.place}`" if verdict.place else "no difference"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
