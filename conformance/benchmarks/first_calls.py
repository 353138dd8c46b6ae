"""The frequency of wrong first calls of a function: `python -m conformance.benchmarks.first_calls [--processes N] [--function F]`.

Each process is forked from a process that has not called any function, and calls the function twice on several threads, more than
there are cores. A first result that differs from the second is wrong, and infinitely so where only one of them is a number. The
measurement is repeated with an equal number of processes after `numerics.first_calls`.
"""

import argparse
import math
import os
import struct
import sys
from collections.abc import Callable

import torch

from conformance.numerics.first_calls import FUNCTIONS, make_first_calls

ELEMENTS, THREADS, TOGETHER = 2**15, 4, 4
NUMBER = struct.Struct("d")


def differences(processes: int, call: Callable[[], torch.Tensor]) -> list[float]:
    """Return, for each forked process, the largest difference between its first and second result; a few run at a time."""
    reading, writing = os.pipe()
    largest: list[float] = []
    for _ in range(0, processes, TOGETHER):
        children = []
        for _ in range(TOGETHER):
            child = os.fork()
            if not child:
                first, second = call(), call()
                os.write(writing, NUMBER.pack(difference(first, second)))
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
            largest += NUMBER.unpack(os.read(reading, NUMBER.size))
    os.close(reading)
    os.close(writing)
    return largest


def difference(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the largest difference of two results, infinite where only one of them is a number; equal infinities do not differ."""
    same = (first == second) | (first.isnan() & second.isnan())
    return float((first - second).abs().nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(same, 0.0).max())


def main() -> int:
    """Print one line for each measurement; return 1 if a result is wrong although all first calls were made before."""
    parser = argparse.ArgumentParser(prog="conformance.benchmarks.first_calls", description=__doc__)
    parser.add_argument("--processes", type=int, default=4000)
    parser.add_argument("--function", choices=FUNCTIONS, default="tanh")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    argument, function = torch.linspace(-5.0, 5.0, ELEMENTS), getattr(torch.ops.aten, arguments.function)

    def after_first_calls() -> torch.Tensor:
        make_first_calls()
        result: torch.Tensor = function(argument)
        return result

    wrong = 0
    for how, call in (("as it is", lambda: function(argument)), ("after the first calls of one thread", after_first_calls)):
        largest = differences(arguments.processes, call)
        wrong = sum(difference > 0.0 for difference in largest)
        print(f"{arguments.function}, {how}: {wrong} of {len(largest)} first results are wrong, by up to {max(largest):.2g}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
