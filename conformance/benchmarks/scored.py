"""Correct candidates and planted mistakes of one kind, judged in each format, and counted in two tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from conformance.benchmarks.harness import bullets, in_processes, table
from conformance.model.gradients import is_gradient
from conformance.results.result import Result

Task = tuple[str, str]  # The name of a candidate or of a mistake, and a format.


@dataclass(frozen=True)
class Score:
    """What came of a mistake: whether it is detected, placed, named, by these words; and what is reported of it."""

    said: Mapping[str, bool]
    reported: str


@dataclass(frozen=True)
class Part:
    """Correct candidates and mistakes of one kind. Functions are those of a module, since other processes call them.

    Attributes:
        correct: what the correct candidates are, as text.
        candidates: the formats in which each of them is correct, by its name.
        judge: returns the results of a correct candidate, given its name and a format.
        wrong: what the mistakes are, as text; empty if there are none.
        mistakes: their names.
        score: returns what came of a mistake, given its name and a format.
    """

    correct: str
    candidates: Mapping[str, Sequence[str]]
    judge: Callable[[str, str], Sequence[Result]]
    wrong: str = ""
    mistakes: Sequence[str] = ()
    score: Callable[[str, str], Score] | None = None


def lines(part: Part, formats: Sequence[str], jobs: int) -> Iterator[str]:
    """Yield the tables of a part, and what is not as it should be."""
    tasks = [(name, dtype) for dtype in formats for name, those in part.candidates.items() if dtype in those]
    yield from alarm_lines(part.correct, formats, list(in_processes(partial(_alarms, part.judge), tasks, jobs)))
    if part.score:
        yield from _of_wrong(part, part.score, formats, jobs)


@dataclass(frozen=True)
class Alarms:
    """The numbers of judged tensors of a correct candidate, and of gradients among them, and its false alarms."""

    dtype: str
    tensors: int
    gradients: int
    failed: Sequence[str]


def _alarms(judge: Callable[[str, str], Sequence[Result]], task: Task) -> Alarms:
    results = judge(*task)
    judged = [v for result in results for v in result.verdicts if v.outcome in ("pass", "fail")]
    failed = [v.activation for v in judged if v.outcome == "fail"]
    failed += [result.reason or result.outcome for result in results if result.outcome != "pass" and not result.failures]
    return Alarms(task[1], len(judged), sum(is_gradient(v.activation) for v in judged), [f"{', '.join(task)}: {x}" for x in failed])


def alarm_lines(correct: str, formats: Sequence[str], every: Sequence[Alarms]) -> Iterator[str]:
    """Yield the table of correct candidates, and their false alarms."""
    yield f"{correct}:"
    yield ""
    rows = []
    for dtype in formats:
        each = [alarms for alarms in every if alarms.dtype == dtype]
        counts = (sum(a.tensors for a in each), sum(a.gradients for a in each), sum(len(a.failed) for a in each))
        rows.append((dtype, len(each), *counts))
    yield from table(("format", "candidates", "tensors judged", "gradients among them", "false alarms"), rows)
    yield from bullets(failure for alarms in every for failure in alarms.failed)
    yield ""


def _scored(score: Callable[[str, str], Score], task: Task) -> Score:
    return score(*task)


def _of_wrong(part: Part, score: Callable[[str, str], Score], formats: Sequence[str], jobs: int) -> Iterator[str]:
    tasks = [(name, dtype) for dtype in formats for name in part.mistakes]
    every = dict(zip(tasks, in_processes(partial(_scored, score), tasks, jobs), strict=True))
    words = list(next(iter(every.values())).said)
    yield f"{part.wrong}:"
    yield ""
    rows = []
    for dtype in formats:
        each = [score.said for (_, in_format), score in every.items() if in_format == dtype]
        rows.append((dtype, len(each), *(sum(said[word] for said in each) for word in words)))
    yield from table(("format", "mistakes", *words), rows)
    yield from bullets(
        f"{', '.join(task)}: {score.reported or 'nothing'}" for task, score in every.items() if not all(score.said.values())
    )
    yield ""
