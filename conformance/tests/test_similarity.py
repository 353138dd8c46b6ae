"""`similarity`: rounding explains changes of rank between correct systems, and does not explain those caused by a mistake."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance import Checkpoint, trace
from conformance.cli import main
from conformance.goldens.custom_golden import from_directory
from conformance.goldens.generated_weights import weights
from conformance.judge.cosines import EMBEDDING, Cosines, RoundedCosines, compare_ranks
from conformance.judge.segment import Segment
from conformance.model.checkpoint import rounded_weights
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.tests.dense_modules import ARCHITECTURE, directory

Captured = pytest.CaptureFixture[str]
APART = [f"w{i} w{i + 3} w{i + 9} w{2 * i}" for i in range(4)]
ALIKE = [f"w60 w61 w62 w63 w64 w65 w66 w{i}" for i in range(4)]  # Seven of eight words are the same.
HIDDEN = "encoder.layer.0.output.LayerNorm"


def with_vocabulary(folder: Path) -> Path:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(91))]
    (folder / "0_Transformer" / "vocab.txt").write_text("\n".join(words))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers directory with mean pooling and a tokenizer of the words w0 to w90."""
    folder = directory(tmp_path_factory.mktemp("model"), Checkpoint(ARCHITECTURE, weights(7, ARCHITECTURE)))
    return with_vocabulary(folder)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("texts") / "texts.txt"
    file.write_text("\n".join(APART + ALIKE) + "\n")
    return file


def of_hidden(model: Path, column: Any) -> Array:
    """Return an embedding function, (N, H): the hidden states of the texts at a slice or position of tokens."""
    values = trace("hf-eager", from_directory(model, APART + ALIKE)).activations["text"]
    return np.asarray(values[HIDDEN][:, column])


def compared(arguments: list[str], capsys: Captured) -> tuple[int, dict[str, Any]]:
    code = main(["similarity", *arguments, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def arguments(model: Path, texts: Path) -> list[str]:
    return ["--texts", str(texts), "--checkpoint", str(model)]


def test_between_two_attention_kernels_no_pair_of_distinct_texts_changes_rank(arguments: list[str], capsys: Captured) -> None:
    assert main(["similarity", "hf-eager", "hf-sdpa", *arguments, "--format", "json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert (found["discordant"], found["tau"], found["pairs"]) == (0, 1.0, 28)
    assert max(found["excess"]) <= 1.0
    lines = [line.rpartition(",")[0] for line in printed.err.splitlines() if line[:2] in ("1/", "2/", "3/")]
    assert lines == [
        "1/3 hf-eager, float32: embedded",
        "2/3 hf-sdpa, float32: embedded",
        "3/3 rounding errors in float32 of the cosines of 8 texts: computed",
    ]


def test_rank_changes_of_near_duplicates_by_rounding_to_bfloat16_are_explained(arguments: list[str], capsys: Captured) -> None:
    code, found = compared(["hf-eager", "hf-eager", *arguments, "--dtype", "float32", "--dtype", "bfloat16"], capsys)
    assert found["discordant"]
    assert (code, found["unexplained"], found["dtypes"]) == (0, 0, ["float32", "bfloat16"])


def test_first_token_pooling_where_the_model_says_mean_causes_unexplained_rank_changes(
    model: Path, arguments: list[str], tmp_path: Path, capsys: Captured
) -> None:
    np.save(tmp_path / "cls.npy", of_hidden(model, 0).astype(np.float32))
    call = ["similarity", "hf-eager", str(tmp_path / "cls.npy"), *arguments]
    assert main(call) == 1
    rendered = " ".join(capsys.readouterr().out.split())
    assert "rounding does not explain" in rendered
    assert f"B: {tmp_path / 'cls.npy'}, float32; the largest error of a cosine against the oracle is" in rendered
    assert "A: hf-eager, float32; the largest error of a cosine against the oracle is 0." in rendered
    assert main([*call, "--format", "markdown"]) == 1
    assert "| texts |" in capsys.readouterr().out


def test_printing_to_two_decimals_is_an_explanation(model: Path, arguments: list[str], tmp_path: Path, capsys: Captured) -> None:
    values = trace("hf-eager", from_directory(model, APART + ALIKE)).activations["text"]["sentence_embedding"]
    (tmp_path / "printed.txt").write_text(np.array2string(values, threshold=10**6, formatter={"float_kind": "{:.2f}".format}))
    np.save(tmp_path / "exact.npy", np.round(values, 2))
    code, found = compared([str(tmp_path / "printed.txt"), "hf-eager", *arguments], capsys)
    assert (code, max(found["excess"]) <= 1.0) == (0, True)
    assert compared([str(tmp_path / "exact.npy"), "hf-eager", *arguments], capsys)[1]["excess"][0] > 1.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cosine_errors_of_a_correct_run_are_of_the_size_of_their_deviations(model: Path, dtype: str) -> None:
    golden = from_directory(model, APART + ALIKE)
    network = Network(golden.checkpoint.architecture, rounded_weights(golden.checkpoint, dtype), golden.batches["text"])
    rounded = RoundedCosines.of(network, representative_hypothesis(dtype))
    embedding = trace("hf-eager", golden, dtype=dtype).activations["text"]["sentence_embedding"]
    found, pairs = rounded.judge(embedding), np.triu_indices(len(embedding), 1)
    deviation = np.sqrt(rounded.variance + rounded.variance.T)[pairs]
    rms = float(np.sqrt((((found.actual - found.expected)[pairs] / deviation) ** 2).mean()))
    assert 0.2 < rms < 2.0  # below 1: the lanes of a vector unit make smaller errors than the sums in index order of the model


def cosines(*values: float, allowed: float) -> Cosines:
    """Return the cosines of three texts, by pair, in a system whose correct values are 0.1, 0.2 and 0.3."""

    def matrix(of: tuple[float, ...]) -> Array:
        found = np.eye(3)
        found[np.triu_indices(3, 1)] = of
        return found

    return Cosines(matrix(values), matrix((0.1, 0.2, 0.3)), np.full((3, 3), allowed))


def test_a_change_of_order_counts_for_both_pairs_and_is_explained_by_limits_of_its_size() -> None:
    right, other = (0.1, 0.2, 0.3), (0.22, 0.2, 0.3)
    found = compare_ranks(cosines(*right, allowed=0.01), cosines(*other, allowed=0.01))
    assert (found.pairs, found.discordant, found.unexplained, found.explained) == (3, 1, 1, False)
    assert found.tau == pytest.approx(1.0 / 3.0)
    changes = [(c.texts, c.ranks, c.discordant, c.unexplained) for c in found.changes]
    assert changes == [((0, 1), (3, 2), 1, 1), ((0, 2), (2, 3), 1, 1)]
    assert found.changes[0].excess == pytest.approx(0.12 / 0.04)
    assert found.excess == pytest.approx((0.0, 12.0))
    wider = compare_ranks(cosines(*right, allowed=0.03), cosines(*other, allowed=0.03))
    assert (wider.discordant, wider.unexplained, wider.explained) == (1, 0, True)
    tie = compare_ranks(cosines(*right, allowed=0.01), cosines(0.2, 0.2, 0.3, allowed=0.01))
    assert (tie.discordant, tie.tau) == (0, pytest.approx(2.0 / 3.0))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"--texts": "two.txt"}, "two.txt has 2 texts (one per line), expected at least 3"),
        ({"--checkpoint": "plain"}, "does not define a pooling; give a sentence-transformers directory"),
        ({"A": "inner-workings"}, "inner-workings exposes no sentence_embedding"),
        ({"A": "hf-eagr"}, "did you mean hf-eager"),
        ({"A": "hidden.npz"}, "expected one table of embeddings with a complete row for each text"),
        ({"A": "zeros.npy"}, "the embedding of text 2 is zero"),
    ],
)
def test_inputs_that_cannot_be_compared_are_one_error_with_the_remedy(
    change: dict[str, str], words: str, model: Path, texts: Path, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "two.txt").write_text("w1\nw2\n")
    (tmp_path / "plain").mkdir()
    for file in (model / "0_Transformer").iterdir():
        (tmp_path / "plain" / file.name).write_bytes(file.read_bytes())
    hidden = of_hidden(model, slice(None))
    np.savez(tmp_path / "hidden.npz", last_hidden_state=hidden)
    np.save(tmp_path / "zeros.npy", hidden[:, 0] * (np.arange(8) != 1)[:, None])
    given = {"A": "hf-eager", "--texts": str(texts), "--checkpoint": str(model)}
    given |= {key: str(tmp_path / value) if (tmp_path / value).exists() else value for key, value in change.items()}
    assert main(["similarity", given.pop("A"), "hf-sdpa", *(word for pair in given.items() for word in pair)]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_the_variance_along_a_direction_is_that_of_every_rounding_plus_at_most_the_bounds(model: Path) -> None:
    golden = from_directory(model, APART[:1])
    network = Network(golden.checkpoint.architecture, golden.checkpoint.weights, golden.batches["text"])
    segment, hypothesis = Segment(network, EMBEDDING, {}), representative_hypothesis("float32")
    direction = np.random.default_rng(5).standard_normal(segment.value.shape)
    found, (rounding, bound) = segment.directional_variance(direction, hypothesis), segment.projected(direction, hypothesis)
    assert 0.0 < rounding < found < rounding + bound**2
    assert segment.directional_variance(2.0 * direction, hypothesis) == pytest.approx(4.0 * found)
