"""Runs as stored in files, and checks of whether several files are consistent and complete. Pure functions.

Complete means that all shards and their footers are present; consistent means that all use one version of each golden.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.errors import UsageError
from conformance.results.records import CaseRecords, Footer, GoldenRecord, Header, Note

_SHARE = re.compile(r"[0-9]{1,4}")  # at most 9999 shards
_ALIKE = ("suite", "torch", "transformers", "numpy", "onnxruntime", "seed", "examples")  # equal in all shards of a run


@dataclass(frozen=True)
class RunRecords:
    """The records of a run, from its header to its footer.

    Attributes:
        header, footer: None if missing.
        source: where the run is stored, for display; may be empty.
    """

    header: Header | None
    cases: tuple[CaseRecords, ...]
    footer: Footer | None
    source: str = ""

    @property
    def name(self) -> str:
        """The name of the run in messages."""
        return self.source or "this run"

    @property
    def shard(self) -> tuple[int, int]:
        """The number of this shard and the number of shards; raises `UsageError` if the header states no valid shard.

        The number is larger than that of shards for a worker of pytest-xdist that replaces one that has died.
        """
        which, _, count = (self.header.shard if self.header else "1/1").partition("/")
        if not (_SHARE.fullmatch(which) and _SHARE.fullmatch(count) and int(which) and int(count)):
            raise UsageError(f"the header of {self.name} has no shard K/N, two numbers from 1 to 9999")
        return int(which), int(count)

    @property
    def conditions(self) -> dict[str, str]:
        """The known versions and settings that all shards of a run must share."""
        if self.header is None:
            return {}
        candidates = {f"the version of {name}": f"{i.distribution} {i.version}" for name, i in self.header.implementations.items()}
        said = {field: str(value) for field in _ALIKE if (value := getattr(self.header, field)) != ""}
        return said | candidates | self.header.settings


def require_one_version(runs: Iterable[RunRecords]) -> None:
    """Raise `UsageError` if two runs used different versions of a golden, since their verdicts are not comparable."""
    seen: dict[str, tuple[GoldenRecord, RunRecords]] = {}
    for run in runs:
        for name, golden in (run.header.goldens if run.header else {}).items():
            first, other = seen.setdefault(name, (golden, run))
            if first.identity != golden.identity:
                versions = (first.version, golden.version)
                what = "{} and {}".format(*versions) if versions[0] != versions[1] else f"{versions[0]}, with other digests"
                where = f" ({other.source}; {run.source})" if other.source and run.source else ""
                rendered = f"the runs are on different versions of the golden {name}: {what}{where}"
                raise UsageError(f"{rendered}; report them apart, or run them again on one")


def incomplete(runs: Sequence[RunRecords]) -> Iterator[Note]:
    """Yield notes on missing shards and missing ends of runs."""
    for shards in _shards(runs):
        there = {run.shard[0]: run for run in reversed(shards)}
        count = shards[0].shard[1]
        missing = [f"{k}/{count}" for k in range(1, count + 1) if k not in there]
        if missing:
            only = (f"{k}/{count}{f' ({run.source})' if run.source else ''}" for k, run in sorted(there.items()))
            yield Note("missing", f"shard {', '.join(missing)}; of this run there is {', '.join(only)}")
    for run in runs:
        if run.footer is None:
            after = f" after {len(run.cases)} of {run.header.cases} checks" if run.header and run.header.cases else ""
            yield Note("missing", f"the end of {run.name}: it was cut short{after}, and has no footer")


def differing(runs: Iterable[RunRecords]) -> Iterator[Note]:
    """Yield notes on shards of one run that used different versions or settings."""
    for shards in _shards(runs):
        for field in dict.fromkeys(field for run in shards for field in run.conditions):
            values = by_source((run.conditions[field], run.source) for run in shards if field in run.conditions)
            if len(values) > 1:
                yield Note("contradiction", f"shards of one run differ in {field}: {sources(values)}")


def by_source(said: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the sources of each statement, from pairs of a statement and its source."""
    found: dict[str, list[str]] = {}
    for what, source in said:
        found.setdefault(what, []).append(source)
    return found


def sources(said: Mapping[str, Sequence[str]]) -> str:
    """Return statements with their sources, as in `fail in a.jsonl, pass in b.jsonl and c.jsonl`."""
    return ", ".join(what + (f" in {' and '.join(dict.fromkeys(by))}" if all(by) else "") for what, by in said.items())


def _shards(runs: Iterable[RunRecords]) -> Iterator[list[RunRecords]]:
    """Yield the shards of each run.

    Runs with the same identifier and number of shards form one run if no shard occurs twice, even if their conditions differ.
    Otherwise the run was made several times, and its shards are grouped by their conditions and by whether there was a GPU.
    """
    claimed: dict[tuple[object, ...], list[RunRecords]] = {}
    for run in runs:
        if run.header and run.shard[1] > 1:
            claimed.setdefault((run.header.run, run.shard[1]), []).append(run)
    for claim in claimed.values():
        if len({run.shard for run in claim}) == len(claim):
            yield claim
            continue
        made: dict[tuple[object, ...], list[RunRecords]] = {}
        for run in claim:
            made.setdefault((*run.conditions.values(), run.header and run.header.gpu is None), []).append(run)
        yield from made.values()
