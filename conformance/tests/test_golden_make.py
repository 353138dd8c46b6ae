"""`golden make`: a golden is made from a local checkpoint and run again; altered, truncated or missing parts of it are reported."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import numpy as numpy_files
from safetensors import torch as torch_files

from conformance import Golden, check, load_golden, trace
from conformance.cli import main
from conformance.errors import UsageError
from conformance.goldens.custom_golden import from_directory
from conformance.goldens.make import make
from conformance.goldens.manifest import of_entry
from conformance.goldens.shipped_goldens import RECIPES
from conformance.judge.verify_goldens import verify
from conformance.model.checkpoint import content_digest
from conformance.results.file import read_results
from conformance.tests.test_diff_report_trace_replay import BAD
from conformance.tests.test_own_checkpoints import _write

Told = pytest.CaptureFixture[str]
WEIGHTS = "model.safetensors"


def _scale(folder: Path, factor: float) -> None:
    """Scale the weights, so that they round differently in every format, as trained weights do."""
    state = torch_files.load_file(folder / WEIGHTS)
    torch_files.save_file({n: t * factor if t.is_floating_point() else t for n, t in state.items()}, folder / WEIGHTS)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint, `my-bert`, and a golden made from it, `mine`."""
    home = tmp_path_factory.mktemp("home")
    checkpoint = _write(home / "my-bert")
    _scale(checkpoint, 1.001)
    (checkpoint / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "i", "love", "cats", "!"]))
    assert main(["golden", "make", "--checkpoint", str(checkpoint), "-o", str(home / "mine")]) == 0
    return home


@pytest.fixture
def copy(home: Path, tmp_path: Path) -> Path:
    """A copy of both, to be damaged; the checkpoint is found beside the golden."""
    shutil.copytree(home, tmp_path / "copy")
    return tmp_path / "copy"


def _run(*arguments: str, out: Path) -> int:
    return main(["run", *arguments, "-o", str(out)])


def _made(home: Path, *arguments: str) -> int:
    return main(["golden", "make", "--checkpoint", str(home / "my-bert"), *arguments])


def test_a_golden_that_was_made_is_used_again_and_recorded_with_its_digests(home: Path, tmp_path: Path) -> None:
    assert _run("hf-eager", "--golden", str(home / "mine"), "--golden", "tiny", out=tmp_path) == 0
    results = read_results(tmp_path / "results.jsonl")
    assert [c.golden for c in results.checks] == ["mine", "tiny"]
    (header,) = results.headers
    entry = json.loads((home / "mine" / "manifest.json").read_text())["goldens"]["mine"]
    recorded = header.goldens["mine"]
    assert (recorded.version, recorded.weights_digest, recorded.source) == (1, entry["weights_digest"], str(home / "mine"))
    assert recorded.identity != header.goldens["tiny"].identity


def test_a_golden_by_its_path_has_the_oracles_activations_and_judges(home: Path) -> None:
    mine = str(home / "mine")
    assert check("hf-eager", golden=mine).conforms
    assert not check(BAD, golden=mine).conforms
    stored, truth = load_golden(mine).recorded["generated"], trace(f"golden:{mine}", mine).activations["generated"]
    for name, array in stored.items():
        assert array.dtype == np.float64
        assert np.allclose(array, truth[name], rtol=1e-10, atol=1e-12)


def test_diff_trace_power_and_verify_accept_a_golden_by_its_path(home: Path, tmp_path: Path, capsys: Told) -> None:
    mine, traced = str(home / "mine"), str(tmp_path / "t.safetensors")
    assert main(["diff", "hf-eager", f"golden:{mine}"]) == 0
    assert main(["diff", BAD, f"golden:{mine}"]) == 1
    assert main(["trace", "making-bert", "--golden", mine, "-o", traced]) == 0
    assert main(["diff", traced, "hf-eager", "--golden", mine]) == 0
    capsys.readouterr()
    assert main(["trace", "hf-eager", "--golden", mine, "--text", "i love cats"]) == 0
    assert "[CLS] i love cats [SEP]" in capsys.readouterr().out
    assert main(["diff", "golden:tiny", f"golden:{mine}"]) == 2
    assert "is compared on its own inputs: add --golden" in capsys.readouterr().err
    assert main(["golden", "power", "--golden", mine, "--dtype", "float32", "--format", "json"]) == 0
    # `tiny`, whose weights are exact in that format, cannot show this fault.
    assert (mine, "weights-bfloat16") in {(row["golden"], row["fault"]) for row in json.loads(capsys.readouterr().out)}
    assert main(["golden", "verify", mine, "tiny", "--format", "json"]) == 0
    parts = [(part["golden"], part["outcome"]) for part in json.loads(capsys.readouterr().out)]
    assert parts == [("mine", "pass")] * 3 + [("tiny", "pass")] * 4


def _entry(folder: Path, *, whole: bool = True, **changes: Any) -> None:
    file = folder / "manifest.json"
    said = json.loads(file.read_text())
    entry = said["goldens"]["mine"] = said["goldens"]["mine"] | changes
    if whole:
        entry["digest"] = of_entry(*(entry[k] for k in ("version", "architecture", "batches", "weights_digest", "stored_digest")))
    file.write_text(json.dumps(said))


def _json(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)


STORED = "mine.safetensors"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "tensors altered": (lambda home: _flip(home / "mine" / STORED), "is not what the manifest describes; it was altered"),
    "tensors cut short": (lambda home: _cut(home / "mine" / STORED), "cannot be read"),
    "tensors gone": (lambda home: (home / "mine" / STORED).unlink(), "cannot be read"),
    "manifest cut short": (lambda home: _cut(home / "mine" / "manifest.json"), "manifest.json cannot be read"),
    "manifest is a list": (lambda home: (home / "mine" / "manifest.json").write_text("[]"), "manifest.json cannot be read"),
    "manifest of other batches": (lambda home: _entry(home / "mine", batches=["b"]), "its manifest does not describe it"),
    "manifest without batches": (lambda home: _entry(home / "mine", batches=[]), "Expected `array` of length >= 1"),
    "manifest of another version": (lambda home: _entry(home / "mine", whole=False, version=7), "its entry in the manifest is not"),
    "manifest of an older schema": (
        lambda home: _json(home / "mine" / "manifest.json", schema=1),
        "is of schema 1, this is 2; make the golden again",
    ),
    "other weights": (lambda home: _scale(home / "my-bert", 1.001), "have SHA-256"),
    "weights cut short": (lambda home: _cut(home / "my-bert" / WEIGHTS), "the checkpoint that it was made from cannot be read"),
    "weights gone": (lambda home: (home / "my-bert" / WEIGHTS).unlink(), "model.safetensors does not exist"),
    "checkpoint gone": (lambda home: shutil.rmtree(home / "my-bert"), "the checkpoint that it was made from is not at"),
    "other epsilon": (
        lambda home: _json(home / "my-bert" / "config.json", layer_norm_eps=1e-5),
        "is another: it has layer_norm_eps 1e-05, expected 1e-12",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_altered_golden_is_one_clear_error(damage: str, copy: Path, tmp_path: Path, capsys: Told) -> None:
    damages, words = DAMAGES[damage]
    _entry(copy / "mine", source=str(copy / "my-bert"))
    assert load_golden(copy / "mine").checkpoint  # It is verified once for each process.
    damages(copy)
    assert _run("hf-eager", "--golden", str(copy / "mine"), out=tmp_path / "out") == 3
    rendered = capsys.readouterr().err
    assert words in rendered
    assert len(rendered.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_verify_notices_activations_of_another_network_though_their_digest_is_correct(copy: Path) -> None:
    file = copy / "mine" / STORED
    arrays = numpy_files.load_file(file)
    arrays["activation/generated/pooler.dense"] *= 1 + 1e-9
    numpy_files.save_file(arrays, file)
    _entry(copy / "mine", stored_digest=content_digest(arrays))
    (*before, last) = verify(copy / "mine")
    assert {part.outcome for part in before} == {"pass"}
    assert (last.outcome, last.reason) == ("fail", "golden mine: pooler.dense of generated regenerates differently")


def test_a_golden_may_be_moved_with_its_checkpoint_or_without_it(home: Path, copy: Path, tmp_path: Path) -> None:
    assert load_golden(copy / "mine").folder == copy / "my-bert"
    alone = tmp_path / "far" / "off" / "mine"
    shutil.copytree(home / "mine", alone)
    assert load_golden(alone).folder == home / "my-bert"
    assert load_golden(alone).checkpoint
    _write(copy / "other", prefix=False, old_names=True)  # the same values, saved again
    _scale(copy / "other", 1.001)
    _entry(copy / "mine", checkpoint="../other")
    assert load_golden(copy / "mine").folder == copy / "other"
    assert load_golden(copy / "mine").checkpoint


NO_GOLDENS = {
    "nowhere": "no golden 'nowhere', and no folder is called so; there are tiny, edges",
    "some/where": "no golden 'some/where', and no folder is called so; there are tiny, edges",
    "empty": "is no golden: it has no manifest.json; `golden make --checkpoint DIR -o FOLDER` makes one",
    "file": "is a file; a golden of your own is a folder",
    "several": "holds tiny, tanh, and a golden of your own lies alone",
    "./tiny": "tiny is no golden",
}


def test_a_path_that_is_not_a_golden_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Told) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", "tiny"):
        Path(folder).mkdir()
    Path("file").touch()
    make(Path("several"), [RECIPES["tiny"], RECIPES["tanh"]])
    assert load_golden("tiny").activations  # The name of a shipped golden takes precedence over a folder.
    with pytest.raises(UsageError, match="nowhere is not there; a golden of your own is a folder"):
        load_golden(Path("nowhere"))
    for golden, words in NO_GOLDENS.items():
        run = ["run", "hf-eager", "-o", "out", "--golden", golden]
        for command in (run, ["golden", "verify", golden], ["golden", "power", "--golden", golden], ["trace", f"golden:{golden}"]):
            assert main(command) == 2, command
            assert words in capsys.readouterr().err


def test_a_golden_is_never_overwritten_and_cannot_have_the_name_of_a_shipped_one(home: Path, tmp_path: Path, capsys: Told) -> None:
    before = (home / "mine" / STORED).read_bytes()
    (tmp_path / "empty").mkdir()
    for folder, code, words in (
        (home / "mine", 2, "is there, and a golden is never written over"),
        (tmp_path / "tiny", 2, "a golden that is shipped is called 'tiny'"),
        (tmp_path / "empty", 0, ""),
    ):
        assert _made(home, "-o", str(folder)) == code
        assert words in capsys.readouterr().err
    assert (home / "mine" / STORED).read_bytes() == before
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize("damage", ["tensors altered", "other weights", "checkpoint gone"])
def test_verify_names_the_part_that_was_altered(damage: str, copy: Path, capsys: Told) -> None:
    _entry(copy / "mine", source=str(copy / "my-bert"))
    DAMAGES[damage][0](copy)
    assert main(["golden", "verify", str(copy / "mine")]) == 3
    outcomes = [part.outcome for part in verify(copy / "mine")]
    assert outcomes == (["fail", "skip", "skip"] if damage == "tensors altered" else ["pass", "fail", "fail"])


def test_in_another_format_the_reference_uses_the_rounded_weights(home: Path) -> None:
    """The reference then equals that of the checkpoint itself; the recorded activations use the unrounded weights."""

    def global_errors(golden: Golden) -> list[Any]:
        return [verdict.global_error for verdict in check("hf-eager", golden, dtype="bfloat16").verdicts]

    golden, itself = load_golden(home / "mine"), from_directory(home / "my-bert")
    assert global_errors(golden) == global_errors(itself) != global_errors(replace(golden, activations=golden.recorded))
