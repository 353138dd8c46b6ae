"""The cache of sampled sigmas: it changes no result, and a damaged entry is never used."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from conformance import check, golden_of, load_golden
from conformance.cli import main
from conformance.judge import cache, sampled_sigma

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
        return sampled_sigma.accumulated_sigma(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(cache, "sampled_sigma", counted)
    return times


def global_error() -> list[object]:
    return [v.global_error for v in check("making-bert", GOLDEN).verdicts]


def test_the_second_run_reads_the_cache_and_gives_the_same_result(home: Path, samplings: list[int]) -> None:
    first = global_error()
    assert len(cache.entries()) == 1
    assert global_error() == first
    assert len(samplings) == 1
    assert any(first)


@pytest.mark.parametrize("what", ["cut short", "altered", "another network's", "another dtype's", "no digest"])
def test_a_damaged_entry_is_reported_and_computed_again(what: str, home: Path, samplings: list[int]) -> None:
    first = global_error()
    (entry,) = cache.entries()
    arrays = load_file(entry)
    if what == "cut short":
        entry.write_bytes(entry.read_bytes()[:1000])
    elif what == "altered":
        entry.write_bytes(entry.read_bytes()[:-1] + bytes([entry.read_bytes()[-1] ^ 1]))
    elif what == "another network's":
        arrays.pop("pooler.dense")
        save_file(arrays, entry, {"entry": entry.stem, "digest": cache.content_digest(arrays)})
    elif what == "another dtype's":
        check("making-bert", GOLDEN, dtype="bfloat16")
        samplings.pop()
        next(other for other in cache.entries() if other != entry).replace(entry)
    else:
        save_file(arrays, entry)
    with pytest.warns(cache.CacheWarning, match="damaged"):
        assert global_error() == first
    assert len(samplings) == 2
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


def test_the_least_recently_used_entry_is_removed_at_the_size_limit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in ("float32", "float64", "bfloat16"):
        check("making-bert", GOLDEN, dtype=dtype)
    oldest, *_ = cache.entries()
    for age, path in enumerate(cache.entries()):
        os.utime(path, (age, age))
    monkeypatch.setattr(cache, "LIMIT", sum(p.stat().st_size for p in cache.entries()) + 1000)
    check("making-bert", GOLDEN, dtype="float16")
    assert len(cache.entries()) == 3
    assert oldest not in cache.entries()


def test_an_entry_that_cannot_be_written_affects_nothing_else(home: Path) -> None:
    home.write_text("no folder")
    with pytest.warns(cache.CacheWarning, match="cannot be written"):
        assert check("making-bert", GOLDEN).conforms


def test_no_cache_writes_no_entries(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["run", "-i", "making-bert", "--golden", GOLDEN, "--out", str(tmp_path / "out"), "--no-cache"]
    assert main(asked) == 0
    assert not home.exists()
    monkeypatch.setenv(cache.VARIABLE, cache.OFF)
    assert check("making-bert", GOLDEN).conforms
    assert cache.entries() == []


def test_the_command_lists_and_clears_entries(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check("making-bert", GOLDEN)
    assert main(["cache"]) == 0
    assert f"{home}: 1 entries" in capsys.readouterr().out
    assert main(["cache", "--format", "json"]) == 0
    rendered = json.loads(capsys.readouterr().out)
    assert rendered["folder"] == str(home)
    assert list(rendered["entries"].values()) == [cache.entries()[0].stat().st_size]
    assert main(["cache", "--clear"]) == 0
    assert not cache.entries()
    monkeypatch.setenv(cache.VARIABLE, cache.OFF)
    assert main(["cache"]) == 0
    assert "the cache is disabled" in capsys.readouterr().out


def test_the_key_changes_with_the_code_that_computes_it(monkeypatch: pytest.MonkeyPatch, samplings: list[int]) -> None:
    global_error()
    monkeypatch.setattr(cache, "code_digest", lambda: "another")
    global_error()
    assert len(samplings) == 2


@pytest.mark.parametrize(
    "name",
    [
        "model/activations.py",
        "oracle/linear.py",
        "oracle/gradients/products.py",
        "numerics/measured_error_bounds.json",
        "judge/loss_curve.py",
    ],
)
def test_the_digest_of_the_code_changes_with_each_file_that_determines_an_entry(name: str, tmp_path: Path) -> None:
    before, after = (tmp_path / folder for folder in ("before", "after"))
    for copied in (before, after):
        shutil.copytree(cache.PACKAGE, copied, ignore=shutil.ignore_patterns("tests", "benchmarks", "_fixtures", "__pycache__"))
    assert cache.code_digest(before) == cache.code_digest(after) == cache.code_digest()
    with (after / name).open("a") as file:
        file.write("\n")
    assert cache.code_digest(after) == cache.code_digest()  # computed once in a process
    cache.code_digest.cache_clear()
    assert cache.code_digest(after) != cache.code_digest(before)


def test_the_cached_sigma_agrees_with_the_accumulated_variances() -> None:
    """First-order propagation counts deterministic bounds as variances as well, so its sigma is larger, but not by much."""
    from conformance.judge.found_equations import accumulated
    from conformance.model.checkpoint import rounded_weights
    from conformance.numerics.arithmetic import representative_hypothesis
    from conformance.oracle import Network

    golden = load_golden(GOLDEN)
    ((_, batch),) = golden.batches.items()
    network = Network(golden.checkpoint.architecture, rounded_weights(golden.checkpoint, "float32"), batch)
    arithmetic = representative_hypothesis("float32").arithmetic
    propagated = accumulated(network, arithmetic)
    for name, sigma in sampled_sigma.accumulated_sigma(network, arithmetic):
        row = network.table[name]
        if "position" in row.axes and not row.exact and sigma.all():
            judged = batch.mask[:, :, None]
            expected = np.sqrt((propagated[name].variance * judged).sum((0, 1)) / judged.sum())
            assert 0.3 < np.median(sigma.ravel() / expected) < 1.2, name
