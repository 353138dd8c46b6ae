"""What a tool costs, and what it reports; to be measured in a process of its own, since some tools change torch for good."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from conformance.benchmarks.cost import Ratio, Seconds, Subject, network, peak_mib, ratio, times
from conformance.benchmarks.peers.candidates import GOLDENS, candidates, subject
from conformance.benchmarks.peers.peer import PEERS, Peer
from conformance.judge import cache

LAYERS = 3  # of twelve, so that nine tools are measured in some ten minutes
MISSING = "not installed; `pip install 'bert-conformance[peers]'`"


@dataclass(frozen=True)
class PeerVerdict:
    """What a tool reports of a run: where the first difference is, in its words, and whether that is right."""

    place: str | None
    right: bool


@dataclass(frozen=True)
class Row:
    """A tool's row.

    Attributes:
        written: bytes on disk after one comparison.
        memory: MiB of the peak resident size above a plain pass's.
        verdicts: by golden and candidate; empty for a tool that only captures.
        reason: why there are no figures.
    """

    peer: str
    package: str
    version: str | None
    settings: str
    ratio: Ratio | None = None
    memory: float | None = None
    written: int | None = None
    verdicts: dict[str, dict[str, PeerVerdict]] | None = None
    reason: str = ""


def row(peer: Peer, repeats: int) -> Row:
    """All of a tool, in this process; a tool that fails has a row that says why."""
    known = (peer.name, peer.distribution, peer.version, peer.settings)
    if peer.version is None:
        return Row(*known, reason=MISSING)
    try:
        cost = _cost(peer.name, repeats)
        return Row(*known, *cost, _all_verdicts(peer.name))
    except (Exception, SystemExit) as error:
        return Row(*known, reason=f"failed: {type(error).__name__}: {error}")


def verdicts(peer: Peer, golden: str) -> dict[str, PeerVerdict]:
    """What a tool reports of each candidate on a golden."""
    reference, found = subject(golden), {}
    with _home() as home:
        for name, candidate, expected in candidates(golden):
            place = _compared(peer, reference, candidate, home)
            right = place is None if expected is None else expected in (place or "")
            found[name] = PeerVerdict(place, right)
    return found


def _all_verdicts(name: str) -> dict[str, dict[str, PeerVerdict]]:
    peer = named(name)
    return {golden: verdicts(peer, golden) for golden in GOLDENS} if peer.compares else {}


def named(name: str) -> Peer:
    """The tool of that name."""
    return next(peer for peer in PEERS if peer.name == name)


def _cost(name: str, repeats: int) -> tuple[Ratio, float, int]:
    """Of a comparison of a network with itself: ratios to its plain pass, MiB above it, and the bytes that it wrote.

    The first comparison is not timed: it fills caches.
    """
    one, peer = Subject(*network(LAYERS)), named(name)
    one.plain()
    plain_peak = peak_mib(one.plain)
    plain: list[Seconds] = []
    found: list[Seconds] = []
    with _home() as home:
        peak = peak_mib(lambda: _compared(peer, one, one, home))
        written = sum(file.stat().st_size for file in home.rglob("*") if file.is_file())
        for _ in range(repeats):  # by turns, so that the machine's other load meets both
            plain += times(one.plain, 3)
            found += times(lambda: _compared(peer, one, one, home), 1)
    return ratio(found, plain), round(peak - plain_peak), written


def _compared(peer: Peer, reference: Subject, candidate: Subject, home: Path) -> str | None:
    """What the tool says; what it prints is part of its work and is not shown."""
    folder = Path(tempfile.mkdtemp(dir=home))
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        return peer.compare(reference, candidate, folder)


@contextmanager
def _home() -> Iterator[Path]:
    """A folder for what is written, the suite's cache included."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get(cache.VARIABLE)
        os.environ[cache.VARIABLE] = str(Path(folder) / "cache")
        try:
            yield Path(folder)
        finally:
            os.environ.pop(cache.VARIABLE)
            if before is not None:
                os.environ[cache.VARIABLE] = before
