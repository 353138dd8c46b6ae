"""The accuracy of library functions: how it is bounded, what the table of known kernels allows, and what is measured on this
machine."""

import mmap
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import special
from torch import nn

from conformance import check
from conformance.checks import candidate_device, run_header
from conformance.checks.check import Plan
from conformance.checks.run_header import header_of
from conformance.numerics.first_calls import FUNCTIONS as FIRST_CALLED
from conformance.numerics.formats import FORMATS
from conformance.numerics.function_error_bounds import rows, table_bounds
from conformance.numerics.function_errors import BINS, MeasuredErrors, measured
from conformance.numerics.functions import FUNCTIONS
from conformance.numerics.machine import Machine, measure, this_machine, torch_functions
from conformance.report.run import document
from conformance.report.terminal import plain
from conformance.results.records import Results
from conformance.results.to_records import footer, records_of
from conformance.tests.planted_mistakes import Planted

SINGLE = FORMATS["float32"]
LIBRARY = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
GRID = np.concatenate([s * np.geomspace(2.0**-20, 4.0, 4000) for s in (-1.0, 1.0)]).astype(np.float32)

Function = Callable[[torch.Tensor], torch.Tensor]


def less_accurate_erf(x: torch.Tensor) -> torch.Tensor:
    """erf off by 6e-6, as computed by a polynomial of low degree."""
    return torch.erf(x) + 6e-6 * torch.sin(3.0 * x)


def less_accurate_gelu(x: torch.Tensor) -> torch.Tensor:
    return x / 2.0 * (1.0 + less_accurate_erf(x * 0.5**0.5))


class LessAccurateGelu(nn.Module):
    forward = staticmethod(less_accurate_gelu)


def machine_with(**functions: Function) -> Machine:
    return measure("cpu", {**torch_functions(), **functions})


def test_every_function_has_a_finite_bound_and_every_row_states_its_source() -> None:
    for name, dtype in product(FUNCTIONS, ("float32", "float64")):
        bounds = table_bounds().bounds[name, dtype]
        assert bounds, (name, dtype)
        assert all(np.isfinite([b.absolute, b.ulp]).all() for b in bounds), (name, dtype)
    assert all(row["source"] for row in rows())
    assert {row["library"] for row in rows()} >= {"torch", "numpy", "onnxruntime"}
    assert not any("+" in row["versions"] for row in rows() if row["source"] == "measured")


def test_erf_is_that_of_an_independent_library() -> None:
    x = np.concatenate([np.linspace(-7.0, 7.0, 200_001), np.geomspace(1e-300, 1.0, 10_001)])
    expected = special.erf(x)
    assert (np.abs(FUNCTIONS["erf"].true(x) - expected) <= 3.0 * np.spacing(np.abs(expected))).all()  # 1 ULP and 2 ULP


@pytest.mark.parametrize(("absolute", "ulp"), [(0.0, 2.0), (3e-7, 0.0), (3e-7, 2.0)], ids=["relative", "absolute", "both"])
def test_the_bound_covers_the_measured_errors_and_is_not_much_wider(absolute: float, ulp: float) -> None:
    erf = FUNCTIONS["erf"]
    y = erf.true(GRID.astype(np.float64))
    errors = measured(erf, GRID, y + absolute + ulp * SINGLE.ulp(y), SINGLE)
    bound = errors.bound(erf, SINGLE)
    allowed = bound.absolute + bound.ulp * SINGLE.ulp(y)
    assert (allowed >= (absolute + ulp * SINGLE.ulp(y)) * (1.0 - 1e-9)).all()
    assert allowed.max() <= 2.0 ** (1.0 / BINS) * (absolute + ulp * SINGLE.ulp(y)).max() * (1.0 + 1e-9)
    assert not errors.exceed([bound])


def test_results_that_are_not_numbers_exceed_every_bound() -> None:
    erf, bounds = FUNCTIONS["erf"], table_bounds().bounds["erf", "float32"]
    assert measured(erf, GRID, np.full_like(GRID, np.nan), SINGLE).exceed(bounds)
    assert not MeasuredErrors().exceed(bounds)


def test_a_machine_has_one_note_for_each_function_and_float32_product_beyond_the_table() -> None:
    machine = this_machine("cpu")
    assert len(machine.notes) == len(machine.exceeding)
    assert machine.exceeding or machine.error_bounds is table_bounds()
    assert min(machine.products.values()) > 18.0
    header = header_of("cpu", {}, Plan()).machine
    assert header
    assert header.functions.keys() == machine.functions.keys() == FUNCTIONS.keys()
    assert header.settings.keys() == {"float32_matmul_precision", "tf32", "onednn_fpmath_mode", "flush_to_zero", "threads"}
    assert header.exceeding == list(machine.notes)


def test_a_bfloat16_product_is_measured_to_have_eight_bits() -> None:
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.bfloat16().float() @ b.bfloat16().float()

    bits = measure("cpu", {}, product).products
    assert all(7.5 < b < 8.5 for b in bits.values())


def test_a_library_beyond_the_table_is_a_property_of_the_machine_and_not_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def plant(model: nn.ModuleDict) -> None:
        model["bert"].encoder.layer[1].intermediate.intermediate_act_fn = LessAccurateGelu()

    alone = check(Planted(plant), "tiny")
    assert [v.activation for v in alone.origins] == ["encoder.layer.1.intermediate.intermediate_act_fn"]
    machine = machine_with(gelu=less_accurate_gelu)
    assert machine.exceeding.keys() == {*this_machine("cpu").exceeding, "gelu"}
    assert any("torch's gelu on this machine is off by up to" in note for note in machine.notes)
    monkeypatch.setattr(candidate_device, "this_machine", lambda device: machine)
    result = check(Planted(plant), "tiny")
    assert result.conforms, result.reason


@pytest.mark.parametrize(
    "wrong", [lambda x: torch.nn.functional.gelu(x, approximate="tanh"), lambda x: x * torch.nan], ids=["tanh", "nan"]
)
def test_a_function_that_returns_no_float32_is_an_error_of_the_machine(wrong: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = machine_with(gelu=wrong)
    monkeypatch.setattr(candidate_device, "this_machine", lambda device: machine)
    result = check("hf-eager", "tiny")
    assert (result.outcome, result.exit_code) == ("error", 3)
    assert "torch's gelu on cpu is no float32 function" in result.reason


@pytest.mark.skipif(not LIBRARY.is_file(), reason="torch is not built as libtorch_cpu.so, which has the functions' names")
def test_first_calls_are_made_for_every_function_that_torch_takes_from_onemkl() -> None:
    """oneMKL's float32 vector functions are named vms and the function's name."""
    with LIBRARY.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        names = {name.decode().lower() for name in re.findall(rb"\0vms([A-Z][A-Za-z0-9]*)(?=\0)", library)}
    assert {"log" if name == "ln" else name for name in names} == ({*FIRST_CALLED} if torch.backends.mkl.is_available() else set())


def test_first_calls_are_made_before_a_candidate_is_imported(tmp_path: Path) -> None:
    made = "from conformance.numerics.first_calls import make_first_calls\nassert make_first_calls.cache_info().currsize == 1\n"
    (tmp_path / "imported.py").write_text(made + "def prepare(checkpoint, device, dtype): return None\n")
    before = "from conformance.numerics.first_calls import make_first_calls\nassert make_first_calls.cache_info().currsize == 0\n"
    program = before + "from conformance.candidates.registry import load_implementation\nload_implementation('imported:prepare')"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


def test_functions_in_a_half_format_are_within_one_ulp() -> None:
    y = np.array([0.3, 0.9])
    error = table_bounds().error("tanh", y, FORMATS["bfloat16"])
    assert (error < FORMATS["bfloat16"].ulp(y)).all()
    assert (error > FORMATS["bfloat16"].ulp(y) / 2.0).all()


def test_functions_beyond_the_table_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = machine_with(gelu=less_accurate_gelu)
    monkeypatch.setattr(run_header, "this_machine", lambda device: machine)
    header, cases = header_of("cpu", {}, Plan()), (records_of(check("hf-eager", "tiny")),)
    counts = footer(case.check for case in cases)
    text = " ".join(plain(document(Results((header, header), cases, counts)), 400).split())
    assert text.count(machine.notes[0]) == 1
    assert counts.exit_code == 0
