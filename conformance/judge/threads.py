"""Parallel execution of independent parts of a judgement, with one thread for each part."""

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
    """Return the number of threads to use: OMP_NUM_THREADS if it is set, else the number of cores available to this process."""
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
    os.register_at_fork(after_in_child=_pool.cache_clear)  # Threads do not survive a fork.


@contextmanager
def products_on_one_thread() -> Iterator[None]:
    """Limit BLAS to the calling thread, so that its threads do not compete with those of `on_all_cores`."""
    if cores() == 1:
        yield
        return
    with _libraries().limit(limits=1):
        yield


def on_all_cores(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return `function(item)` for each item, in order, computed by several threads."""
    if len(items) < 2 or cores() == 1:
        return [function(item) for item in items]
    return list(_pool().map(function, items))
