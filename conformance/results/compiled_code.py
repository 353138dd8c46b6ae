"""A candidate that is compiled by `torch.compile` is judged compiled, however many shapes and networks it is called with.

`torch.compile` compiles a function again for each new kind of input. Once it has been compiled eight times
(`torch._dynamo.config.recompile_limit`), the function is run eagerly, and a warning is all that says so. A run has more goldens and
batches than that, so the eager function would be judged in place of the compiled one.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def always_compiled() -> Iterator[None]:
    """Remove the limits on recompilation inside this context and in threads that inherit its context variables.

    Nothing is done, and nothing imported, before the candidate's code has imported the compiler.
    """
    if "torch._dynamo" not in sys.modules:
        yield
        return
    from torch._dynamo.utils import disable_cache_limit

    with disable_cache_limit():
        yield
