"""Several cores: independent parts of a judgement, each on one thread."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


@cache
def cores() -> int:
    """How many threads may compute: as many as OMP_NUM_THREADS says, or as there are cores for this process."""
    setting = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if setting.isdecimal() and int(setting):
        return int(setting)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores(), "judge")


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


@contextmanager
def products_on_one_thread() -> Iterator[None]:
    """NumPy's products are computed on the thread that asks for them: others would compete with those of `on_all_cores`."""
    if cores() == 1:
        yield
        return
    with _libraries().limit(limits=1):
        yield


def on_all_cores(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`function` of each, in their order, several at a time."""
    if len(items) < 2 or cores() == 1:
        return [function(item) for item in items]
    return list(_pool().map(function, items))
