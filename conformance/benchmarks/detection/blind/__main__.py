"""`python -m conformance.benchmarks.detection.blind`: run the blind mistakes and print the table."""

import argparse
from collections.abc import Mapping

import torch

from conformance.benchmarks.detection.blind import (
    eighth,
    eleventh,
    fifth,
    first,
    fourth,
    ninth,
    second,
    seventh,
    sixth,
    tenth,
    third,
)
from conformance.benchmarks.detection.blind.eighth import named as eighth_named
from conformance.benchmarks.detection.blind.eleventh import named as eleventh_named
from conformance.benchmarks.detection.blind.fifth import named as fifth_named
from conformance.benchmarks.detection.blind.first import named as first_named
from conformance.benchmarks.detection.blind.fourth import named as fourth_named
from conformance.benchmarks.detection.blind.ninth import named as ninth_named
from conformance.benchmarks.detection.blind.score import outcomes, table
from conformance.benchmarks.detection.blind.second import named as second_named
from conformance.benchmarks.detection.blind.seventh import named as seventh_named
from conformance.benchmarks.detection.blind.sixth import named as sixth_named
from conformance.benchmarks.detection.blind.tenth import named as tenth_named
from conformance.benchmarks.detection.blind.third import named as third_named

_SETS = {
    "first": (first.MISTAKES, first_named.RIGHT),
    "second": (second.MISTAKES, second_named.RIGHT),
    "third": (third.MISTAKES, third_named.RIGHT),
    "fourth": (fourth.MISTAKES, fourth_named.RIGHT),
    "fifth": (fifth.MISTAKES, fifth_named.RIGHT),
    "sixth": (sixth.MISTAKES, sixth_named.RIGHT),
    "seventh": (seventh.MISTAKES, seventh_named.RIGHT),
    "eighth": (eighth.MISTAKES, eighth_named.RIGHT),
    "ninth": (ninth.MISTAKES, ninth_named.RIGHT),
    "tenth": (tenth.MISTAKES, tenth_named.RIGHT),
    "eleventh": (eleventh.MISTAKES, eleventh_named.RIGHT),
    "second-new": ({n: m for n, m in second.MISTAKES.items() if n not in second_named.REPEATED}, second_named.RIGHT),
}

# In earlier sets, what is only described counts as named wrongly.
_DESCRIBED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "tenth": tenth_named.DESCRIBED,
    "eleventh": eleventh_named.DESCRIBED,
}


def main() -> None:
    """Run every mistake on every golden and format that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m conformance.benchmarks.detection.blind")
    parser.add_argument("--golden", nargs="+", default=["tiny", "wide"], help="goldens with a GELU and both heads")
    parser.add_argument("--set", choices=_SETS, default="first", help="second-new: those of the second that the first has not")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    mistakes, right = _SETS[arguments.set]
    described = _DESCRIBED.get(arguments.set, {})
    cases = [(golden, dtype) for golden in arguments.golden for dtype in arguments.dtype]
    found = (one for golden, dtype in cases for one in outcomes(golden, dtype, mistakes.values(), right, described))
    print(table(found, with_described=bool(described)))


if __name__ == "__main__":
    main()
