"""The tutorial's pipeline, from dialogues to a trained network: what it reads, what it draws, what it resumes, what it learns."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conformance import UsageError, check, golden_of, load_directory
from implementations.demystified import corpus, demystified, wordpiece
from implementations.demystified.checkpoints import newest
from implementations.demystified.dialogues import OWN, Dialogues
from implementations.demystified.examples import Examples, permuted
from implementations.demystified.network import IGNORED
from implementations.demystified.page import words
from implementations.demystified.pretrain import Settings, main, pretrain


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    """Of the package's own dialogues, with words of several pieces."""
    folder = tmp_path_factory.mktemp("corpus")
    dialogues = Dialogues(OWN, folder / "index")
    tokenizer = wordpiece.trained(lambda: (text for each in dialogues for text in each), 120)
    corpus.write(folder, dialogues, tokenizer)
    return Examples(corpus.read(folder), tuple(wordpiece.pieces(tokenizer)), 32, 0)


def small(folder: Path = OWN) -> Settings:
    return Settings(str(folder), vocabulary_size=300, length=24, batch_size=16, layers=1, hidden_size=32, heads=2, warmup_steps=10)


class TestDialogues:
    def test_every_conversation_of_the_own_corpus_is_read(self, tmp_path: Path) -> None:
        dialogues = Dialogues(OWN, tmp_path / "index")
        found = list(dialogues)
        assert (len(found), sum(map(len, found)), not dialogues.skipped.counts) == (55, 329, True)
        assert found[0][:2] == ["Is the lamp lit?", "It is lit, but the glass is dirty."]

    def test_malformed_lines_are_counted_named_and_skipped_and_nothing_is_evaluated(self, tmp_path: Path) -> None:
        fields = "{} +++$+++ u +++$+++ m +++$+++ A +++$+++ {}".format
        texts = {"L1": "caf\xe9", "L2": "two", "L3": " ", "L4": "a +++$+++ b", "L5": "five"}
        lines = [*(fields(name, text) for name, text in texts.items()), "no fields"]
        conversations = [
            "u +++$+++ u +++$+++ m +++$+++ ['L1', 'L2', 'L3', 'L4', 'L5']",
            "u +++$+++ u +++$+++ m +++$+++ ['L1', 'L9', 'L2', 'L5']",
            f"u +++$+++ u +++$+++ m +++$+++ [open({str(tmp_path / 'run')!r}, 'w')]",
        ]
        (tmp_path / "movie_lines.txt").write_text("\n".join(lines), encoding="iso-8859-1")
        (tmp_path / "movie_conversations.txt").write_text("\n".join(conversations), encoding="iso-8859-1")
        dialogues = Dialogues(tmp_path, tmp_path / "index")
        assert list(dialogues) == [["caf\xe9", "two"], ["a +++$+++ b", "five"], ["two", "five"]]
        assert sorted(dialogues.skipped.counts.values()) == [1, 1, 1, 1]
        assert any("movie_conversations.txt:3" in place for place in dialogues.skipped.places)
        assert not (tmp_path / "run").exists()

    def test_in_plain_text_a_blank_line_ends_a_conversation(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("one\ntwo\n\nalone\n\nthree\nfour")
        assert list(Dialogues(tmp_path, tmp_path / "index")) == [["one", "two"], ["three", "four"]]

    def test_a_folder_without_dialogues_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="has neither"):
            Dialogues(tmp_path, tmp_path / "index")


class TestVocabulary:
    def test_it_is_the_same_in_every_process(self, tmp_path: Path) -> None:
        script = (
            "import sys; from pathlib import Path; from implementations.demystified import wordpiece\n"
            "from implementations.demystified.dialogues import OWN, Dialogues\n"
            "found = Dialogues(OWN, Path(sys.argv[1]))\n"
            "print(wordpiece.pieces(wordpiece.trained(lambda: (t for each in found for t in each), 300)))"
        )
        runs = [
            subprocess.run([sys.executable, "-c", script, str(tmp_path / f"{i}")], check=True, capture_output=True).stdout
            for i in range(3)
        ]
        assert runs[0] == runs[1] == runs[2]

    def test_text_that_is_spelled_like_a_special_token_is_none(self, tmp_path: Path) -> None:
        tokenizer = wordpiece.trained(lambda: ["a [SEP] b", "[SEP] c"], 100)
        corpus.write(tmp_path, [["a [SEP] b", "[SEP] c", "a"]], tokenizer)
        assert (corpus.read(tmp_path).ids > 4).all()


class TestExamples:
    @pytest.mark.parametrize("n", [1, 2, 7, 64, 1000])
    def test_an_epoch_has_each_pair_once_in_an_order_of_its_own(self, n: int) -> None:
        first, second = ([permuted(i, n, (0, epoch)) for i in range(n)] for epoch in (0, 1))
        assert sorted(first) == sorted(second) == list(range(n))
        assert n < 7 or (first != second and first != list(range(n)))

    def test_a_batch_in_which_nothing_was_chosen_has_one_label(self, examples: Examples) -> None:
        assert all((examples.batch(step, 1).labels != IGNORED).any() for step in range(50))


class TestRun:
    def test_what_is_killed_and_resumed_has_the_same_curve_and_weights_bit_for_bit(self, tmp_path: Path) -> None:
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        pretrain(small(), whole, 24, save_every=8)
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in vars(small()).items() if name != "folder"]
        script = (
            "import os, sys; from implementations.demystified import pretrain as p, trainer as t\n"
            "step = t.Trainer.step\n"
            "def killed(self, batch):\n"
            "    if self.steps == 13: os.kill(os.getpid(), 9)\n"
            "    return step(self, batch)\n"
            "t.Trainer.step = killed\n"
            "p.main(sys.argv[1:])"
        )
        rest = [*arguments, "--out", str(parts), "--steps", "24", "--save-every", "8"]
        assert subprocess.run([sys.executable, "-c", script, *rest], check=False, capture_output=True).returncode == -9
        assert newest(parts).name == "checkpoint-000000008"
        assert main([*rest, "--resume"]) == 0
        assert (parts / "curve.jsonl").read_bytes() == (whole / "curve.jsonl").read_bytes()
        for file in ("model.safetensors", "training.safetensors"):
            assert (newest(parts) / file).read_bytes() == (newest(whole) / file).read_bytes()

    def test_a_run_is_not_written_over_and_not_resumed_with_other_settings(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rest = ["--layers=1", "--hidden-size=16", "--heads=2", "--steps=1", "--batch-size=2", "--out", str(tmp_path / "run")]
        assert main(rest) == 0
        assert main(rest) == 2
        assert "go on with --resume" in capsys.readouterr().err
        assert main([*rest, "--resume", "--seed=1"]) == 2
        assert "seed was 0" in capsys.readouterr().err

    @pytest.mark.parametrize("wrong", ["--steps=0", "--seed=-1", "--length=4", "--heads=3", "--batch-size=0"])
    def test_numbers_out_of_range_are_refused_before_anything_is_written(self, tmp_path: Path, wrong: str) -> None:
        assert main([wrong, "--out", str(tmp_path / "run")]) == 2
        assert not (tmp_path / "run").exists()

    def test_the_masked_loss_falls_below_that_of_unigram_frequencies_and_the_network_conforms(self, tmp_path: Path) -> None:
        settings = Settings(str(OWN), vocabulary_size=300, length=24, layers=1, hidden_size=64, heads=2, learning_rate=3e-3)
        pretrain(settings, tmp_path, 250, save_every=250)
        rows = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
        ids = np.array(corpus.read(tmp_path).ids)
        frequencies = np.bincount(ids) / ids.size
        entropy = float(-(frequencies[frequencies > 0] * np.log(frequencies[frequencies > 0])).sum())
        assert np.mean([row["masked_lm_loss"] for row in rows[-50:]]) < entropy < rows[0]["masked_lm_loss"]
        assert "<polyline" in (tmp_path / "curve.html").read_text()
        assert words(rows) in (tmp_path / "curve.html").read_text()
        checkpoint = load_directory(newest(tmp_path))
        assert checkpoint.architecture.heads == ("plain_masked_lm", "plain_next_sentence")
        examples = Examples(corpus.read(tmp_path), tuple((newest(tmp_path) / "vocab.txt").read_text().split("\n")[:-1]), 24, 0)
        assert check(demystified, golden_of("trained", checkpoint, {"batch": examples.batch(0, 4)})).outcome == "pass"
