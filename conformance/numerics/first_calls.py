"""First calls of oneMKL's vector functions, made by a single thread before anything is measured or judged.

torch evaluates these functions of contiguous float32 and float64 arguments with oneMKL's vector library, on several threads for
more than 2,048 elements. The library selects the kernel of a function at the function's first call. In oneMKL 2024.2, which is
part of torch 2.13's wheels, a thread whose first call coincides with that of another thread may get a kernel of low accuracy
once: in one process of one to two thousand, erf is off by up to 2.4e-4 and tanh by 9e-5, measured in 20,000 processes each
(`benchmarks/first_calls.py` of commit 9356b6b8); all later calls are accurate (pytorch/pytorch issue 188792, which does not find
the error from oneMKL 2025.0 on). A correct candidate would fail at random, and the machine would be measured as less accurate than
it is. After one call by a single thread, no first call is left in this process or in processes forked from it.
"""

from functools import cache

# The functions that torch 2.13 takes from oneMKL (`aten/src/ATen/cpu/vml.h`); `test_function_error_bounds` compares them with it.
FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "log", "log10", "log2", "sin", "sqrt", "tan", "tanh", "trunc"),
)


@cache
def make_first_calls() -> None:
    """Call each function once in float32 and float64, with one element so that only one thread is used."""
    import torch

    with torch.no_grad():
        for dtype in (torch.float32, torch.float64):
            argument = torch.full((1,), 0.5, dtype=dtype, device="cpu")
            for name in FUNCTIONS:
                getattr(torch.ops.aten, name)(argument)
