"""The accuracy of library functions: the measurements in `conformance/numerics/measured_error_bounds.json`.

`python -m conformance.benchmarks.functions` measures every installed library, and torch under each instruction set that this
machine can dispatch, each in a separate process, and prints one row each; `--write` saves the rows in the table, replacing earlier
rows of the same library, version and instruction set.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import conformance.numerics
from conformance.benchmarks.functions.libraries import Lane, lanes
from conformance.benchmarks.functions.sweep import Kernel, every_float32, every_half, sampled_float64
from conformance.numerics.formats import FORMATS, Format
from conformance.numerics.function_error_bounds import MEASURED, Bound
from conformance.numerics.function_errors import BINS, MeasuredErrors
from conformance.numerics.functions import FUNCTIONS, Function

Row = Mapping[str, Any]

PATH = Path(conformance.numerics.__file__).parent / MEASURED
COMMAND = "python -m conformance.benchmarks.functions --write"


def rows_of(lane: Lane, stride: int) -> list[Row]:
    """Return one row for each function and dtype of a lane."""
    rows = []
    for function in FUNCTIONS.values():
        if lane.functions and function.name not in lane.functions:
            continue
        lower, upper = lane.interval
        function = replace(function, lower=max(lower, function.lower), upper=min(upper, function.upper))
        for dtype in FORMATS:
            kernel = lane.kernels(function.name, dtype)
            if kernel is not None and (dtype != "float64" or find_spec("mpmath")):
                rows.append(_row(lane, function, dtype, _errors(function, dtype, kernel, stride), stride))
    return rows


def _errors(function: Function, dtype: str, kernel: Kernel, stride: int) -> MeasuredErrors:
    if dtype == "float32":
        return every_float32(function, kernel, stride)
    return sampled_float64(function, kernel) if dtype == "float64" else every_half(function, kernel, FORMATS[dtype])


def _row(lane: Lane, function: Function, dtype: str, errors: MeasuredErrors, stride: int) -> Row:
    storage = FORMATS[dtype]
    bound, incorrect = errors.bound(function, storage), lane.incorrect.get((function.name, dtype))
    points = f"{errors.points} arguments" + (f", every {stride}th" if stride > 1 and dtype == "float32" else "")
    return {
        **_summary(lane, function.name, dtype, errors, f"{function.lower:g} to {function.upper:g}; {points}"),
        **({"incorrect": incorrect} if incorrect else {}),
        "bound": {"absolute": bound.absolute, "ulp": bound.ulp},
        "relative_from": _relative_from(errors, bound, storage),
    }


def _relative_from(errors: MeasuredErrors, bound: Bound, storage: Format) -> float:
    """Return the smallest result from which on the ULP part of a bound is sufficient alone; 0 if it always is."""
    spacings = {b: 2.0 ** (b / BINS) for b in errors.frontier}
    short = [spacings[b] for b, error in errors.frontier.items() if error > bound.ulp * spacings[b]]
    return float(max(short, default=0.0) * 2.0 ** (1.0 / BINS) / (2.0 * storage.unit_roundoff))


def _summary(lane: Lane, function: str, dtype: str, errors: MeasuredErrors, where: str) -> Row:
    return {
        "function": function,
        "library": lane.library,
        "versions": lane.version,
        "isa": lane.isa,
        "dtype": dtype,
        "absolute": errors.absolute.value,
        "ulp": errors.ulp.value,
        "at": [errors.absolute.at, errors.ulp.at],
        "range": where,
        "bound": None,
        "source": "measured",
    }


def merged(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Return all rows in order, with new rows replacing old ones of the same key."""
    together = {_key(row): row for row in (*old, *new)}
    return [together[key] for key in sorted(together)]


def _key(row: Row) -> tuple[str, ...]:
    return tuple(row[part] for part in ("function", "dtype", "library", "versions", "isa"))


def write(new: Sequence[Row]) -> None:
    """Save rows to the table."""
    old = json.loads(PATH.read_text())["rows"] if PATH.exists() else []
    lines = ",\n".join("  " + json.dumps(row) for row in merged(old, new))
    PATH.write_text(f'{{"command": {json.dumps(COMMAND)}, "rows": [\n{lines}\n]}}\n')


def line(row: Row) -> str:
    """Return a row as a line of text."""
    bound = row["bound"]
    allowed = f"; bound {bound['absolute']:.3g} + {bound['ulp']:.3g} ULP" if bound else ""
    name = f"{row['library']} {row['versions']}, {row['isa']}"
    return f"{name}: {row['function']} {row['dtype']}: {row['absolute']:.3g} absolute, {row['ulp']:.4g} ULP{allowed}"


def main() -> None:
    """Measure every lane in a separate process, print its rows, and save them if `--write` is given."""
    parser = argparse.ArgumentParser(prog="python -m conformance.benchmarks.functions", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the rows into the table")
    parser.add_argument("--stride", type=int, default=1, help="look at every N-th float32 alone (for emulated machines)")
    parser.add_argument("--lane", default="", help="only lanes whose name has this in it")
    parser.add_argument("--here", action="store_true", help="measure the lane of this name in this process, and print JSON")
    options = parser.parse_args()
    if options.here:
        print(json.dumps([row for lane in lanes() if lane.name == options.lane for row in rows_of(lane, options.stride)]))
        return
    for lane in (lane for lane in lanes() if options.lane in lane.name):
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
