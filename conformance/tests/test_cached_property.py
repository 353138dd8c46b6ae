"""Cached properties."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from conformance.numerics.memo import cached_property


class _Meeting:
    """An object whose property is computed only while that of another object is being computed."""

    computed = 0

    def __init__(self, barrier: Barrier) -> None:
        self.barrier = barrier

    @cached_property
    def value(self) -> int:
        self.computed += 1
        self.barrier.wait(60.0)
        return self.computed


def test_threads_compute_the_same_property_of_different_objects_at_once() -> None:
    barrier = Barrier(2)
    objects = [_Meeting(barrier), _Meeting(barrier)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda o: o.value, objects)) == [1, 1]
    assert [o.value for o in objects] == [1, 1]
