"""`python -m conformance.benchmarks.functions [--write] [--stride N] [--lane NAME]`."""

import argparse
import json
import os
import subprocess
import sys

from conformance.benchmarks.functions.libraries import Lane, lanes
from conformance.benchmarks.functions.table import Row, line, rows_of, write


def main() -> None:
    """Measure every lane in a separate process, print its rows, and save them if `--write` is given."""
    parser = argparse.ArgumentParser(prog="python -m conformance.benchmarks.functions", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the rows into the table")
    parser.add_argument("--stride", type=int, default=1, help="look at every N-th float32 alone (for emulated machines)")
    parser.add_argument("--lane", default="", help="only lanes whose name has this in it")
    parser.add_argument("--here", action="store_true", help="measure in this process, and print JSON")
    options = parser.parse_args()
    chosen = [lane for lane in lanes() if options.lane in lane.name]
    if options.here:
        print(json.dumps([row for lane in chosen for row in rows_of(lane, options.stride)]))
        return
    for lane in chosen:
        rows = _elsewhere(lane, options.stride)
        print("\n".join(line(row) for row in rows), flush=True)
        if options.write:
            write(rows)


def _elsewhere(lane: Lane, stride: int) -> list[Row]:
    """Return the rows of a lane, measured in a process with the lane's environment."""
    command = [sys.executable, "-W", "ignore", "-m", __package__, "--here", "--lane", lane.name, "--stride", str(stride)]
    done = subprocess.run(command, env={**os.environ, **lane.environment}, check=True, stdout=subprocess.PIPE, text=True)
    rows: list[Row] = json.loads(done.stdout)
    return rows


if __name__ == "__main__":
    main()
