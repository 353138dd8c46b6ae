"""Products with errors that are subnormal in float32, such as those of a gradient that is 0, keep their value."""

import numpy as np
import pytest

from conformance.numerics.formats import Array
from conformance.oracle.accumulation import operand, product_in_single

RNG = np.random.default_rng(5)
SMALLEST = 2.0**-149  # float32's smallest subnormal number


def _close(actual: Array, expected: Array) -> None:
    """Assert equality up to the roundings of float32, relative to the largest element, and one smallest number."""
    assert actual.dtype == np.float32
    room = 1e-5 * np.abs(expected).max() + SMALLEST
    assert np.abs(actual - expected).max() <= room


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-45, 1e-42, 1e-38, 1e-30, 1e-12, 1.0, 1e6])
@pytest.mark.parametrize("other", [1e-30, 1e-3, 1e3, 1e30])
def test_a_product_with_small_factors_is_that_of_float64(size: float, other: float) -> None:
    left, right = RNG.normal(size=(2, 3, 8)) * size, RNG.normal(size=(8, 4)) * other
    _close(product_in_single(left, right), left @ right)
    _close(product_in_single(left, operand(right)), left @ right)
    first, second = RNG.normal(size=(2, 3, 8)) * other, RNG.normal(size=(2, 8, 5)) * size
    _close(product_in_single(first, second), first @ second)


def test_rows_of_very_different_size_keep_their_digits() -> None:
    left = RNG.normal(size=(6, 8)) * 10.0 ** -np.array([[1], [11], [20], [30], [38], [44]])
    right = RNG.normal(size=(8, 4)) * 1e3
    found, expected = product_in_single(left, right), left @ right
    for row in range(5):  # The last row's result has few digits in float32.
        _close(found[row], expected[row])
    assert np.abs(found[5]).max() > 0.0
