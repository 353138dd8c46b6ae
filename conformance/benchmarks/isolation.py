"""The cost of worker processes: `python -m conformance.benchmarks.isolation [--repeats N]`.

The benchmark alternates between the README's first command with workers and with `--in-process`. It measures whole processes,
including imports.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from statistics import median

RUN = ("run", "-i", "hf-eager", "-i", "hf-sdpa", "-i", "inner-workings", "--golden", "tiny", "--golden", "minilm")


def seconds(*more: str) -> float:
    """Return the duration of a run.

    Raises:
        CalledProcessError: the run does not conform.
    """
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "conformance", *RUN, "--out", out, *more], check=True, capture_output=True)
        return time.perf_counter() - start


def main() -> None:
    """Print both times, and the median ratio of neighbouring runs with its range."""
    parser = argparse.ArgumentParser(prog="conformance.benchmarks.isolation", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    seconds()  # Fills the caches.
    pairs = [(seconds(), seconds("--in-process")) for _ in range(repeats)]
    workers, here = (median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(a / b for a, b in pairs)
    print(f"workers {workers:.1f} s, one process {here:.1f} s; ratio {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
