"""How often the first call of a function goes wrong: `python -m conformance.benchmarks.first_calls [--processes N] [--function F]`.

Each process is forked from one that has called nothing, and calls the function once on several threads, more than there are cores;
half of them after `numerics.first_calls`. A result that differs from that of most is a wrong one.
"""

import argparse
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable

import torch

from conformance.numerics.first_calls import FUNCTIONS, make_first_calls

ELEMENTS, THREADS, TOGETHER = 2**15, 4, 4
DIGEST = 8  # bytes of a result's digest


def digests(processes: int, call: Callable[[], torch.Tensor]) -> Counter[bytes]:
    """What so many forked processes got, some of them at a time."""
    reading, writing = os.pipe()
    found: Counter[bytes] = Counter()
    for _ in range(0, processes, TOGETHER):
        children = []
        for _ in range(TOGETHER):
            child = os.fork()
            if not child:
                os.write(writing, hashlib.sha256(call().numpy().tobytes()).digest()[:DIGEST])
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
            found[os.read(reading, DIGEST)] += 1
    os.close(reading)
    os.close(writing)
    return found


def main() -> int:
    """A line for either way; 1 where a result is wrong after all first calls have been made."""
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
        found = digests(arguments.processes, call)
        wrong = found.total() - found.most_common(1)[0][1]
        print(f"{arguments.function}, {how}: {wrong} of {found.total()} processes got another result")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
