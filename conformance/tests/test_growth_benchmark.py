"""The benchmarks of cost: the page on how the cost of a judged run grows, and the times on a device."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.benchmarks import on_device
from conformance.benchmarks.growth import Measured, exponent, page

pytestmark = pytest.mark.thorough  # benchmarks, which no user runs


def test_the_exponent_is_one_for_proportional_and_two_for_quadratic_costs() -> None:
    assert exponent([2, 4, 8], [0.3, 0.6, 1.2]) == pytest.approx(1.0)
    assert exponent([2, 4, 8], [0.3, 1.2, 4.8]) == pytest.approx(2.0)


def test_the_page_has_each_size_with_its_ratio_the_exponents_and_a_plot() -> None:
    text = "\n".join(page({"layers": {2: Measured(0.1, 1.0, 300.0), 4: Measured(0.2, 2.2, 301.0)}}, 5))
    assert "Made by `python -m conformance.benchmarks.growth --repeats 5 --write`." in text
    assert "| 4 | 0.200 | 2.20 | 11.0 | 301 |" in text
    assert "Exponents: 1.00 of the plain pass, 1.14 of the judged run." in text
    assert "line [1.00, 2.20]" in text


def test_the_ratios_on_a_device_are_those_of_the_times_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def times(work: Any, repeats: int) -> list[tuple[float, float]]:
        work()
        return {5: [(1.0, 1.0), (2.0, 1.0), (6.0, 1.0)], 3: [(8.0, 1.0), (10.0, 1.0), (30.0, 1.0)], 1: [(50.0, 1.0)]}[repeats]

    device = SimpleNamespace(memory_allocated=lambda: 0, max_memory_allocated=lambda: 0, reset_peak_memory_stats=lambda: None)
    subject = SimpleNamespace(plain=lambda: None, verdicts=lambda depth, on: [])
    monkeypatch.setattr(on_device, "times", times)
    monkeypatch.setattr(on_device, "_Subject", lambda *_: subject)
    monkeypatch.setattr(torch, "get_device_module", lambda _: device)
    cost = on_device.measured("cpu")
    assert (cost.plain, cost.seconds["full, on the device"], cost.seconds["full, in memory"]) == (2.0, 10.0, 50.0)
    assert cost.ratios == {what: seconds / cost.plain for what, seconds in cost.seconds.items()}
