"""The depth `screen`: the same verdicts from RMS and largest error, without named mistakes, and the report says so."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance import check, load_golden
from conformance.cli import main
from conformance.judge import DEPTHS, SCREENED
from conformance.judge.judge import Judge
from conformance.oracle import Network
from conformance.report.representations import case_text
from conformance.results.file import read_results
from conformance.tests.planted_mistakes import Planted, epsilon, native_norms, tanh_gelu, unscaled

BROKEN = Planted(unscaled(1), tanh_gelu(1), epsilon(0))


@pytest.mark.landing(dtype="bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_screened_candidate_fails_where_it_fails_at_full_depth(dtype: str) -> None:
    full, screened = (check(BROKEN, "tiny", dtype=dtype, depth=depth) for depth in ("full", "screen"))
    assert screened.outcome == full.outcome == "fail"
    seen = {v.activation for v in full.verdicts if v.outcome == "fail" and v.local and not v.local.detected}
    failed = {v.activation for v in screened.verdicts if v.outcome == "fail"}
    assert seen <= failed <= {v.activation for v in full.verdicts if v.outcome == "fail"}
    assert failed
    for verdict in screened.verdicts:
        assert verdict.global_error is None
        assert verdict.local is None or not (verdict.local.filters or verdict.local.explanations)


def test_a_correct_candidate_passes() -> None:
    native = Planted(native_norms)
    for candidate, dtype in (
        ("hf-eager", "float64"),
        ("hf-sdpa", "float16"),
        ("torch-encoder-fast", "float32"),
        (native, "bfloat16"),
    ):
        result = check(candidate, "tiny", dtype=dtype, depth="screen")
        assert result.outcome == "pass", result.reason


@pytest.mark.parametrize("padded", [False, True])
def test_a_copy_is_compared_bit_for_bit_except_at_padding(padded: bool) -> None:
    golden, name = load_golden("tiny"), "encoder.layer.0.output.dropout"
    batch = golden.batches["padded"]
    network = Network(golden.checkpoint.architecture, golden.checkpoint.weights, batch)
    values: dict[str, Any] = {n: value.astype(np.float32) for n, value in network.walk() if not network.table[n].is_internal}
    row, position = np.argwhere(batch.mask != padded)[-1]
    values[name] = values[name].copy()
    values[name][row, position, 3] = np.nextafter(values[name][row, position, 3], np.float32(9.0))
    for depth in DEPTHS:
        (verdict,) = [v for v, _ in Judge(network, "float32", depth=depth).judge(values.items()) if v.activation == name]
        assert verdict.outcome == ("pass" if padded else "fail")
        assert verdict.local is not None
        assert verdict.local.error.index == ((0, 0, 0) if padded else (row, position, 3))


def test_the_command_line_passes_the_depth_on_and_report_and_results_file_say_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rendered = case_text(check(BROKEN, "tiny", depth="screen"))
    assert SCREENED in " ".join(rendered.split())
    assert "has a name" not in rendered
    assert main(["run", "making-bert", "--golden", "tiny", "--depth", "screen", "-o", str(tmp_path)]) == 0
    assert "depth: screen: each step was judged by its RMS and largest error alone" in " ".join(capsys.readouterr().out.split())
    results = read_results(tmp_path / "results.jsonl")
    assert results.header
    assert results.header.depth == "screen"
    assert all(a.global_error is None for a in results.activations)
