"""`python -m conformance.benchmarks.detection.blind`: run the blind mistakes and print the table."""

import argparse

import torch

from conformance.benchmarks.detection.blind.score import outcomes, table


def main() -> None:
    """Run every mistake on every golden and format that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m conformance.benchmarks.detection.blind")
    parser.add_argument("--golden", nargs="+", default=["tiny", "wide"], help="goldens with a GELU and both heads")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(table(one for golden in arguments.golden for dtype in arguments.dtype for one in outcomes(golden, dtype)))


if __name__ == "__main__":
    main()
