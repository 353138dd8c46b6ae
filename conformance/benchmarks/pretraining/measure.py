"""Measurements of the pre-training pipeline, and the tables of results."""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from conformance.benchmarks.pretraining.corpora import SIZES, Cost, cost
from conformance.benchmarks.pretraining.kills import SAVE_EVERY, STEPS, Kill, in_preparation, in_training

RESULTS = Path(__file__).with_name("RESULTS.md")
KILLS = 10


def table(training: Sequence[Kill], preparation: Sequence[Kill], costs: Sequence[Cost], seed: int) -> Iterator[str]:
    """Yield the lines of RESULTS.md."""
    yield "# The pre-training pipeline"
    yield ""
    yield f"Made by `python -m conformance.benchmarks.pretraining --seed {seed} --write`."
    yield ""
    yield f"Runs of {STEPS} steps with a checkpoint every {SAVE_EVERY}, killed by SIGKILL at random moments and resumed. Curve,"
    yield "prepared corpus and last checkpoint (weights and moments) are compared byte by byte with those of an undisturbed run."
    yield ""
    yield "| killed in | kills | steps lost, at most | runs that end otherwise |"
    yield "| --- | --- | --- | --- |"
    for name, kills in (("training", training), ("reading the corpus and training the vocabulary", preparation)):
        lost = max(kill.done - kill.kept for kill in kills)
        yield f"| {name} | {len(kills)} | {lost} | {sum(bool(kill.different) for kill in kills)} |"
    yield ""
    yield "Steps done and steps kept, in training: " + "; ".join(f"{kill.done}, {kill.kept}" for kill in training) + "."
    yield ""
    yield "Reading a generated corpus, training WordPiece and writing token ids:"
    yield ""
    yield "| lines | seconds | lines a second | memory after imports | peak |"
    yield "| --- | --- | --- | --- | --- |"
    for c in costs:
        yield f"| {c.lines} | {c.seconds:.1f} | {c.lines / c.seconds:.0f} | {c.imported:.0f} MiB | {c.peak:.0f} MiB |"


def main() -> None:
    """Measure, and print the tables; `--write` also saves them."""
    parser = argparse.ArgumentParser(prog="python -m conformance.benchmarks.pretraining", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        training, preparation = (kill(Path(name), KILLS, arguments.seed) for kill in (in_training, in_preparation))
    text = "\n".join(table(training, preparation, [cost(lines) for lines in SIZES], arguments.seed)) + "\n"
    if arguments.write:
        RESULTS.write_text(text)
    print(text, end="")
