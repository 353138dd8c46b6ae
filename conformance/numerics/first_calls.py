"""The first call of each vector function of oneMKL, by one thread, before anything is measured or judged.

torch computes these functions of contiguous float32 and float64 arguments by oneMKL's vector library, on several threads where
there are more than 2,048 elements. That library chooses a function's kernel at its first call. In oneMKL 2024.2, which torch 2.13's
wheels contain, a thread whose call coincides with another's may get a kernel of low accuracy, once: erf is off by up to 2.4e-4 and
tanh by 9e-5 in one process of one to two thousand, by the command below, and every later call is right (pytorch/pytorch issue
188792, which does not find it from oneMKL 2025.0 on). A candidate that is right would fail at random, and the machine would be
measured as less accurate than it is. After a call by one thread no first call is left, in the process and in those that are forked
from it.

    python -m conformance.benchmarks.first_calls --processes 10000 --function erf
"""

from functools import cache

# Those that torch 2.13 takes from it (`aten/src/ATen/cpu/vml.h`): `test_machine` compares them with the library that is installed.
FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "log", "log10", "log2", "sin", "sqrt", "tan", "tanh", "trunc"),
)


@cache
def make_first_calls() -> None:
    """Call each function once in either format, with one element: one thread."""
    import torch

    with torch.no_grad():
        for dtype in (torch.float32, torch.float64):
            argument = torch.full((1,), 0.5, dtype=dtype, device="cpu")
            for name in FUNCTIONS:
                getattr(torch.ops.aten, name)(argument)
