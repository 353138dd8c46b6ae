"""The page on how the cost of a judged run grows."""

import pytest

from conformance.benchmarks.growth import Measured, exponent, page


def test_the_exponent_is_one_for_proportional_and_two_for_quadratic_costs() -> None:
    assert exponent([2, 4, 8], [0.3, 0.6, 1.2]) == pytest.approx(1.0)
    assert exponent([2, 4, 8], [0.3, 1.2, 4.8]) == pytest.approx(2.0)


def test_the_page_has_each_size_with_its_ratio_the_exponents_and_a_plot() -> None:
    text = "\n".join(page({"layers": {2: Measured(0.1, 1.0, 300.0), 4: Measured(0.2, 2.2, 301.0)}}))
    assert "| 4 | 0.200 | 2.20 | 11.0 | 301 |" in text
    assert "Exponents: 1.00 of the plain pass, 1.14 of the judged run." in text
    assert "line [1.00, 2.20]" in text
