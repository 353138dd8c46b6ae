"""The curve of a run: a file with a line of JSON for each step, what the network scored on the step's batch before it."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import TextIO

from implementations.demystified.scores import Scores

CURVE = "curve.jsonl"
LAST = 50  # steps whose scores are taken together, in the progress and on the page


def read(folder: Path) -> list[Scores]:
    """The scores of every step."""
    rows = (json.loads(line) for line in (folder / CURVE).read_text().splitlines())
    return [Scores(**{field.name: row[field.name] for field in fields(Scores)}) for row in rows]


def opened(folder: Path, steps: int) -> TextIO:
    """The file, to be continued after that many steps; lines of later ones, whole or not, are removed."""
    path = folder / CURVE
    kept = path.read_bytes().splitlines(keepends=True)[:steps] if path.is_file() else []
    file = open(path, "a", buffering=1)  # line by line, so that it can be watched  # noqa: SIM115
    file.truncate(sum(map(len, kept)))
    return file


def append(file: TextIO, step: int, scores: Scores, learning_rate: float) -> None:
    """Write a step's line."""
    file.write(json.dumps({"step": step, **asdict(scores), "learning_rate": learning_rate}) + "\n")
