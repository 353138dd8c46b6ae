"""The cache of sampled sigmas: it changes no result, and a damaged entry is never used."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from conformance import check, golden_of, load_golden
from conformance.checks.search.agreement import accumulated
from conformance.cli import main
from conformance.judge import cache
from conformance.judge.global_error import accumulated_sigma
from conformance.model.checkpoint import rounded_weights
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.oracle import Network

GOLDEN = "tiny"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test's own."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def samplings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one each time sigma is sampled."""
    times: list[int] = []

    def counted(*arguments: object) -> Iterator[object]:
        times.append(1)
        return accumulated_sigma(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(cache, "sampled_sigma", counted)
    return times


def global_error() -> list[object]:
    return [v.global_error for v in check("making-bert", GOLDEN).verdicts]


def test_the_second_run_reads_the_cache_and_gives_the_same_result(samplings: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    first = global_error()
    assert any(first)
    assert len(cache.entries()) == 1
    assert global_error() == first
    assert len(samplings) == 1
    monkeypatch.setattr(cache, "code_digest", lambda: "another")
    assert global_error() == first
    assert len(samplings) == 2


def _digested_without_a_step(entry: Path) -> None:
    arrays = load_file(entry)
    arrays.pop("pooler.dense")
    save_file(arrays, entry, {"entry": entry.stem, "digest": cache.content_digest(arrays)})


def _replaced_by_another(entry: Path) -> None:
    check("making-bert", GOLDEN, dtype="bfloat16")
    next(other for other in cache.entries() if other != entry).replace(entry)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut short": lambda entry: entry.write_bytes(entry.read_bytes()[:1000]),
    "altered": lambda entry: entry.write_bytes(entry.read_bytes()[:-1] + bytes([entry.read_bytes()[-1] ^ 1])),
    "another network's": _digested_without_a_step,
    "another dtype's": _replaced_by_another,
    "no digest": lambda entry: save_file(load_file(entry), entry),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_reported_and_computed_again(damage: str, samplings: list[int]) -> None:
    first = global_error()
    (entry,) = cache.entries()
    DAMAGES[damage](entry)
    del samplings[1:]
    with pytest.warns(cache.CacheWarning, match="damaged"):
        assert global_error() == first
    assert global_error() == first
    assert len(samplings) == 2


def test_another_batch_dtype_or_network_has_its_own_entry(samplings: list[int]) -> None:
    golden = load_golden(GOLDEN)
    check("making-bert", GOLDEN)
    check("making-bert", GOLDEN, dtype="float64")
    ((_, batch),) = golden.batches.items()
    check("making-bert", golden_of("shorter", golden.checkpoint, {"shorter": batch.cut(slice(0, 2))}))
    check("making-bert", "wide")
    assert len(samplings) == len(cache.entries()) == 4


def test_no_cache_writes_no_entries(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["run", "making-bert", "--golden", GOLDEN, "-o", str(tmp_path / "out"), "--no-cache"]) == 0
    assert not home.exists()
    monkeypatch.setenv(cache.VARIABLE, cache.OFF)
    assert check("making-bert", GOLDEN).conforms
    assert cache.entries() == []


def test_the_command_lists_and_clears_entries(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check("making-bert", GOLDEN)
    (entry,) = cache.entries()
    assert main(["cache", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["folder"], row["entries"], row["bytes"]) == (str(home), 1, entry.stat().st_size)
    assert main(["cache", "--clear"]) == 0
    assert not cache.entries()
    monkeypatch.setenv(cache.VARIABLE, cache.OFF)
    assert main(["cache"]) == 0
    assert f"none: {cache.VARIABLE} is {cache.OFF}" in capsys.readouterr().out


def test_the_cached_sigma_agrees_with_the_accumulated_variances() -> None:
    """First-order propagation counts deterministic bounds as variances as well, so its sigma is larger, but not by much."""
    golden = load_golden(GOLDEN)
    ((_, batch),) = golden.batches.items()
    network = Network(golden.checkpoint.architecture, rounded_weights(golden.checkpoint, "float32"), batch)
    arithmetic = representative_hypothesis("float32").arithmetic
    propagated = accumulated(network, arithmetic)
    for name, sigma in accumulated_sigma(network, arithmetic):
        row = network.table[name]
        if "position" in row.axes and not row.exact and sigma.all():
            judged = batch.mask[:, :, None]
            expected = np.sqrt((propagated[name].variance * judged).sum((0, 1)) / judged.sum())
            assert 0.3 < np.median(sigma.ravel() / expected) < 1.2, name
