"""The tutorial's pre-training pipeline, from dialogues to a trained network: reading, sampling and learning."""

import math
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from conformance import UsageError, check, golden_of, load_directory
from conformance.implementations.demystified import demystified, wordpiece
from conformance.implementations.demystified.corpus import tokenized
from conformance.implementations.demystified.curves import together
from conformance.implementations.demystified.dialogues import CONVERSATIONS, LINES, OWN, dialogues
from conformance.implementations.demystified.examples import Examples
from conformance.implementations.demystified.pretrain import main
from conformance.implementations.demystified.run import pretrain
from conformance.implementations.demystified.settings import Settings

ALPHA = 1e-6  # Probability of a false alarm; the seed is fixed.


@pytest.fixture(scope="module")
def examples() -> Examples:
    """Return the examples of the package's own dialogues, with words of several pieces."""
    conversations, _ = dialogues(OWN)
    tokenizer = wordpiece.trained(lambda: (text for each in conversations for text in each), 120)
    return Examples(tokenized(conversations, tokenizer), tuple(wordpiece.pieces(tokenizer)), 32, 0)


def small() -> Settings:
    return Settings(
        str(OWN), vocabulary_size=300, length=24, batch_size=16, layers=1, hidden_size=32, heads=2, dropout=0.1, warmup_steps=10
    )


QUICK = ["--layers=1", "--hidden-size=16", "--heads=2", "--steps=1", "--batch-size=2", "--out"]


class TestDialogues:
    def test_every_conversation_of_the_packages_corpus_is_read(self) -> None:
        found, skipped = dialogues(OWN)
        assert (len(found), sum(map(len, found)), not skipped.counts) == (55, 329, True)
        assert found[0][:2] == ["Is the lamp lit?", "It is lit, but the glass is dirty."]

    def test_malformed_lines_are_counted_named_and_skipped_and_nothing_is_evaluated(self, tmp_path: Path) -> None:
        fields = "{} +++$+++ u +++$+++ m +++$+++ A +++$+++ {}".format
        texts = {"L1": "caf\xe9", "L2": "two", "L3": " ", "L4": "a +++$+++ b", "L5": "five"}
        evaluated = f"[open({str(tmp_path / 'run')!r}, 'w')]"
        conversations = ["['L1', 'L2', 'L3', 'L4', 'L5']", "['L1', 'L9', 'L2', 'L5']", evaluated]
        for name, lines in (
            (LINES, [*(fields(name, text) for name, text in texts.items()), "no fields"]),
            (CONVERSATIONS, [f"u +++$+++ u +++$+++ m +++$+++ {conversation}" for conversation in conversations]),
        ):
            (tmp_path / name).write_text("\n".join(lines), encoding="iso-8859-1")
        found, skipped = dialogues(tmp_path)
        assert found == [["caf\xe9", "two"], ["a +++$+++ b", "five"], ["two", "five"]]
        assert sorted(skipped.counts.values()) == [1, 1, 1, 1]
        assert any("movie_conversations.txt:3" in place for place in skipped.places)
        assert not (tmp_path / "run").exists()

    def test_in_plain_text_a_blank_line_ends_a_conversation(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("one\ntwo\n\nalone\n\nthree\nfour")
        assert dialogues(tmp_path)[0] == [["one", "two"], ["three", "four"]]

    def test_a_folder_without_dialogues_or_with_half_of_the_cornell_corpus_is_refused(self, tmp_path: Path) -> None:
        for name in ("a.parquet", LINES):
            (tmp_path / name).touch()
            with pytest.raises(
                UsageError, match=r"expected in .* either movie_lines.txt and movie_conversations.txt, or other .txt"
            ):
                dialogues(tmp_path)


class TestRun:
    def test_a_run_is_repeated_bit_for_bit_and_never_overwritten(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for name in ("first", "second"):
            pretrain(small(), tmp_path / name, 6)
        for file in ("curve.jsonl", "network/model.safetensors"):
            assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
        assert main(["--out", str(tmp_path / "first")]) == 2
        assert "choose another folder with --out" in capsys.readouterr().err

    def test_numbers_out_of_range_are_refused_before_anything_is_written(self, tmp_path: Path) -> None:
        for wrong in ("--steps=0", "--seed=-1", "--length=4", "--heads=3", "--batch-size=0"):
            assert main([wrong, "--out", str(tmp_path / "run")]) == 2
        assert not (tmp_path / "run").exists()

    def test_both_losses_fall_pairs_are_classified_above_chance_and_the_network_conforms(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        some = tmp_path / "some"  # of the package's own dialogues, few enough to be learnt in seconds
        some.mkdir()
        for name, count in ((LINES, None), (CONVERSATIONS, 15)):
            (some / name).write_bytes(b"".join((OWN / name).read_bytes().splitlines(keepends=True)[:count]))
        settings = Settings(
            str(some), vocabulary_size=300, length=24, batch_size=64, layers=1, hidden_size=64, heads=2, warmup_steps=30
        )
        out = tmp_path / "run"
        rows = pretrain(settings, out, 150)
        first, last = together(rows[:50]), together(rows[-50:])
        conversations, _ = dialogues(some)
        corpus = tokenized(conversations, Tokenizer.from_file(str(out / "network" / "tokenizer.json")))
        ids = corpus.ids
        frequencies = np.bincount(ids) / ids.size
        entropy = float(-(frequencies[frequencies > 0] * np.log(frequencies[frequencies > 0])).sum())
        assert last.masked_lm_loss < entropy < first.masked_lm_loss
        assert last.next_sentence_loss < math.log(2) < first.next_sentence_loss
        assert last.p_value < ALPHA < first.p_value
        said = f"last 50 steps, training pairs: {last}"
        assert said in capsys.readouterr().out
        page = (out / "curve.html").read_text()
        assert said in page
        assert page.count("<polyline") == 4
        checkpoint = load_directory(out / "network")
        assert checkpoint.architecture.heads == ("plain_masked_lm", "plain_next_sentence")
        vocabulary = tuple((out / "network" / "vocab.txt").read_text().split("\n")[:-1])
        examples = Examples(corpus, vocabulary, 24, 0)
        assert check(demystified, golden_of("trained", checkpoint, {"batch": examples.batch(0, 4)})).outcome == "pass"
