"""The training curve: a file with one line of JSON per step, the network's scores on the step's batch before the update."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import TextIO

from .scores import Scores

CURVE = "curve.jsonl"
LAST = 50  # number of steps averaged, in the progress bar and on the page


def read(folder: Path) -> list[Scores]:
    """Return the scores of every step."""
    rows = (json.loads(line) for line in (folder / CURVE).read_text().splitlines())
    return [Scores(**{field.name: row[field.name] for field in fields(Scores)}) for row in rows]


def opened(folder: Path, steps: int) -> TextIO:
    """Open the file to append after `steps` steps; lines of later steps, complete or not, are removed."""
    path = folder / CURVE
    kept = path.read_bytes().splitlines(keepends=True)[:steps] if path.is_file() else []
    file = open(path, "a", buffering=1)  # line by line, so that it can be watched  # noqa: SIM115
    file.truncate(sum(map(len, kept)))
    return file


def append(file: TextIO, step: int, scores: Scores, learning_rate: float) -> None:
    """Write the line of a step."""
    file.write(json.dumps({"step": step, **asdict(scores), "learning_rate": learning_rate}) + "\n")
