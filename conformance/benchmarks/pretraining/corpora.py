"""Generated corpora of two sizes: how many lines per second are prepared for training, and how much memory this takes.

Words are drawn by Zipf's law from a fixed lexicon, so that a larger corpus has more text but not more words.
"""

import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from conformance.implementations.demystified.cornell import CONVERSATIONS, LINES

SIZES = (30_000, 300_000)
_LEXICON = 20_000  # Number of words.
_LETTERS = "etaoinshrdlu"
_CHILD = """
import resource, sys, time
from pathlib import Path
from rich.console import Console
from conformance.implementations.demystified.preparation import prepared
from conformance.implementations.demystified.settings import Settings
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
prepared(Settings(sys.argv[1]), Path(sys.argv[2]), False, Console(quiet=True))
print(time.perf_counter() - start, before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@dataclass(frozen=True)
class Cost:
    """The cost of preparing a corpus: seconds, and memory in MiB, after the imports and at its peak."""

    lines: int
    seconds: float
    imported: float
    peak: float


def generate(folder: Path, lines: int, seed: int = 0) -> None:
    """Write a corpus in the format of the Cornell corpus: conversations of 2 to 6 lines of 1 to 20 words."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(_LETTERS, k=draw.randint(2, 9))) for _ in range(_LEXICON)]
    weights = list(accumulate(1 / rank for rank in range(1, _LEXICON + 1)))
    with open(folder / LINES, "w", encoding="iso-8859-1") as texts:
        for number in range(lines):
            text = " ".join(draw.choices(words, cum_weights=weights, k=draw.randint(1, 20)))
            texts.write(f"L{number} +++$+++ u0 +++$+++ m0 +++$+++ A +++$+++ {text}\n")
    with open(folder / CONVERSATIONS, "w", encoding="iso-8859-1") as conversations:
        for first, end in _conversations(lines, draw):
            listed = ", ".join(f"'L{number}'" for number in range(first, end))
            conversations.write(f"u0 +++$+++ u1 +++$+++ m0 +++$+++ [{listed}]\n")


def _conversations(lines: int, draw: random.Random) -> Iterator[tuple[int, int]]:
    """Yield the first line of each conversation, and the line after its last."""
    first = 0
    while lines - first > 1:
        end = min(first + draw.randint(2, 6), lines)
        yield first, end
        first = end


def cost(lines: int) -> Cost:
    """Return the cost of preparing a generated corpus in a separate process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder, lines)
        command = [sys.executable, "-c", _CHILD, str(folder), str(folder / "out")]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    seconds, imported, peak = map(float, found)
    return Cost(lines, seconds, imported / 1024, peak / 1024)
