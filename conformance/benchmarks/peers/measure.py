"""A tool's cost and its verdicts, to be measured in a separate process, since some tools modify torch permanently."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from conformance.benchmarks.peers.candidates import GOLDENS, candidates, subject
from conformance.benchmarks.peers.peer import PEERS, Peer
from conformance.benchmarks.resources import Ratio, Seconds, peak_mib, ratio, times
from conformance.benchmarks.subject import Subject, network
from conformance.judge import cache

LAYERS = 3  # Fewer than the usual twelve, so that nine tools are measured in about ten minutes.
MISSING = "not installed; `pip install 'bert-conformance[peers]'`"


@dataclass(frozen=True)
class PeerVerdict:
    """A tool's verdict on a run: the place of the first difference in the tool's words, and whether that is right."""

    place: str | None
    right: bool


@dataclass(frozen=True)
class Row:
    """A tool's row of the table.

    Attributes:
        peer, package, version, settings: the tool, its distribution, its version and its settings.
        ratio: ratio of its time to the plain pass.
        memory: peak resident size above that of a plain pass, in MiB.
        written: bytes on disk after one comparison.
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
    """Measure a tool in this process; the row of a tool that fails gives the reason."""
    known = (peer.name, peer.distribution, peer.version, peer.settings)
    if peer.version is None:
        return Row(*known, reason=MISSING)
    try:
        cost = _cost(peer.name, repeats)
        return Row(*known, *cost, _all_verdicts(peer.name))
    except (Exception, SystemExit) as error:
        return Row(*known, reason=f"failed: {type(error).__name__}: {error}")


def verdicts(peer: Peer, golden: str) -> dict[str, PeerVerdict]:
    """Return a tool's verdict on each candidate of a golden."""
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
    """Return the tool of this name."""
    return next(peer for peer in PEERS if peer.name == name)


def _cost(name: str, repeats: int) -> tuple[Ratio, float, int]:
    """Compare a network with itself and return its time ratio, the memory above a plain pass in MiB, and the bytes written.

    The first comparison is not timed, since it fills caches.
    """
    one, peer = Subject(*network(LAYERS)), named(name)
    one.plain()
    plain_peak = peak_mib(one.plain)
    plain: list[Seconds] = []
    found: list[Seconds] = []
    with _home() as home:
        peak = peak_mib(lambda: _compared(peer, one, one, home))
        written = sum(file.stat().st_size for file in home.rglob("*") if file.is_file())
        for _ in range(repeats):  # Alternating, so that other load on the machine affects both alike.
            plain += times(one.plain, 3)
            found += times(lambda: _compared(peer, one, one, home), 1)
    return ratio(found, plain), round(peak - plain_peak), written


def _compared(peer: Peer, reference: Subject, candidate: Subject, home: Path) -> str | None:
    """Return the tool's verdict; printing is part of its work, and is discarded."""
    folder = Path(tempfile.mkdtemp(dir=home))
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        return peer.compare(reference, candidate, folder)


@contextmanager
def _home() -> Iterator[Path]:
    """Yield a folder for everything that is written, including the suite's cache."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get(cache.VARIABLE)
        os.environ[cache.VARIABLE] = str(Path(folder) / "cache")
        try:
            yield Path(folder)
        finally:
            os.environ.pop(cache.VARIABLE)
            if before is not None:
                os.environ[cache.VARIABLE] = before
