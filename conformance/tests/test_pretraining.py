"""The tutorial's pre-training pipeline, from dialogues to a trained network: reading, sampling, resuming and learning."""

import math
import os
import sys
import webbrowser
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from conformance import DependencyMissingError, UsageError, check, golden_of, load_directory
from conformance.implementations.demystified import corpus, curve, demystified, wordpiece
from conformance.implementations.demystified.checkpoints import newest
from conformance.implementations.demystified.cornell import CONVERSATIONS, LINES
from conformance.implementations.demystified.dialogues import OWN, Dialogues
from conformance.implementations.demystified.examples import Examples, permuted, shortened
from conformance.implementations.demystified.lock import locked
from conformance.implementations.demystified.network import IGNORED
from conformance.implementations.demystified.pretrain import main
from conformance.implementations.demystified.run import pretrain
from conformance.implementations.demystified.scores import together
from conformance.implementations.demystified.settings import Settings
from conformance.tests.forked import run_python

ALPHA = 1e-6  # Probability of a false alarm; the seed is fixed.


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    """Return the examples of the package's own dialogues, with words of several pieces."""
    folder = tmp_path_factory.mktemp("corpus")
    dialogues = Dialogues(OWN, folder / "index")
    tokenizer = wordpiece.trained(lambda: (text for each in dialogues for text in each), 120)
    corpus.write(folder, dialogues, tokenizer)
    return Examples(corpus.read(folder), tuple(wordpiece.pieces(tokenizer)), 32, 0)


def small() -> Settings:
    return Settings(
        str(OWN), vocabulary_size=300, length=24, batch_size=16, layers=1, hidden_size=32, heads=2, dropout=0.1, warmup_steps=10
    )


QUICK = ["--layers=1", "--hidden-size=16", "--heads=2", "--steps=1", "--batch-size=2", "--out"]


class TestDialogues:
    def test_every_conversation_of_the_packages_corpus_is_read(self, tmp_path: Path) -> None:
        dialogues = Dialogues(OWN, tmp_path / "index")
        found = list(dialogues)
        assert (len(found), sum(map(len, found)), not dialogues.skipped.counts) == (55, 329, True)
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
        dialogues = Dialogues(tmp_path, tmp_path / "index")
        assert list(dialogues) == [["caf\xe9", "two"], ["a +++$+++ b", "five"], ["two", "five"]]
        assert sorted(dialogues.skipped.counts.values()) == [1, 1, 1, 1]
        assert any("movie_conversations.txt:3" in place for place in dialogues.skipped.places)
        assert not (tmp_path / "run").exists()

    def test_in_plain_text_a_blank_line_ends_a_conversation(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("one\ntwo\n\nalone\n\nthree\nfour")
        assert list(Dialogues(tmp_path, tmp_path / "index")) == [["one", "two"], ["three", "four"]]

    def test_a_folder_without_dialogues_or_with_two_kinds_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"expected in .* either movie_lines.txt and movie_conversations.txt, or other .txt"):
            Dialogues(tmp_path, tmp_path / "index")
        for name in ("a.txt", "b.parquet"):
            (tmp_path / name).touch()
        with pytest.raises(UsageError, match="or other .txt files, or .parquet files"):
            Dialogues(tmp_path, tmp_path / "index")


Written = Callable[..., Dialogues]


class TestParquet:
    @pytest.fixture
    def written(self, tmp_path: Path) -> Written:
        pytest.importorskip("datasets", reason="datasets is not installed: pip install 'bert-conformance[datasets]'")
        import pyarrow
        from pyarrow import parquet

        def write(**columns: list[object]) -> Dialogues:
            parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
            return Dialogues(tmp_path, tmp_path / "index")

        return write

    def test_lists_of_strings_are_conversations_and_strings_are_utterances_that_a_blank_one_divides(self, written: Written) -> None:
        found = written(id=["x", "y", "z"], said=[["one", " two"], ["3", "4", None, "5", "", "6", "7"], None])
        assert list(found) == list(found) == [["one", "two"], ["3", "4"], ["6", "7"]]
        found = written(text=["one", "two", "", "alone", None, "3", "4"], n=[0] * 7)
        assert list(found) == [["one", "two"], ["3", "4"]]

    def test_no_or_several_possible_columns_are_refused(self, written: Written) -> None:
        for columns in ({"n": [1]}, {"a": ["x"], "b": ["y"]}, {"a": [["x"]], "b": [["y"]]}):
            with pytest.raises(UsageError, match="one column of lists of strings, or else one of strings; found"):
                written(**columns)

    def test_a_file_that_is_not_parquet_is_refused(self, written: Written, tmp_path: Path) -> None:
        assert list(written(text=["one", "two"])) == [["one", "two"]]
        (tmp_path / "b.parquet").write_bytes(b"PAR1")
        with pytest.raises(UsageError, match="Parquet that cannot be read"):
            list(Dialogues(tmp_path, tmp_path / "index"))

    def test_without_datasets_the_error_says_how_to_install_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "a.parquet").touch()
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(DependencyMissingError, match=r"not installed: pip install 'bert-conformance\[datasets\]'"):
            Dialogues(tmp_path, tmp_path / "index")


class TestVocabulary:
    def test_it_is_the_same_in_every_process(self, tmp_path: Path) -> None:
        script = (
            "import sys; from pathlib import Path; from conformance.implementations.demystified import wordpiece\n"
            "from conformance.implementations.demystified.dialogues import OWN, Dialogues\n"
            "found = Dialogues(OWN, Path(sys.argv[1]))\n"
            "print(wordpiece.pieces(wordpiece.trained(lambda: (t for each in found for t in each), 300)))"
        )
        seeds = ({**os.environ, "PYTHONHASHSEED": seed} for seed in "12")
        first, second = (run_python("-c", script, str(tmp_path / env["PYTHONHASHSEED"]), environment=env) for env in seeds)
        assert first.returncode == 0, first.stderr
        assert first.stdout == second.stdout

    def test_text_spelled_like_a_special_token_is_not_one(self, tmp_path: Path) -> None:
        tokenizer = wordpiece.trained(lambda: ["a [SEP] b", "[SEP] c"], 100)
        corpus.write(tmp_path, [["a [SEP] b", "[SEP] c", "a"]], tokenizer)
        assert (corpus.read(tmp_path).ids > 4).all()


class TestExamples:
    def test_an_epoch_has_each_pair_once_in_a_different_order(self) -> None:
        for n in (1, 2, 7, 64, 1000):
            first, second = ([permuted(i, n, (0, epoch)) for i in range(n)] for epoch in (0, 1))
            assert sorted(first) == sorted(second) == list(range(n))
            assert n < 7 or (first != second and first != list(range(n)))

    def test_a_pair_is_shortened_token_by_token_where_it_is_longer_and_at_the_second_of_two_equal_ones(self) -> None:
        for first, second, length in product(range(1, 9), range(1, 9), range(2, 12)):
            a, b = list(range(first)), list(range(second))
            while len(a) + len(b) > length:
                (a if len(a) > len(b) else b).pop()
            kept = shortened(np.arange(first), np.arange(second), length)
            assert [each.tolist() for each in kept] == [a, b]

    def test_every_batch_has_at_least_one_label(self, examples: Examples) -> None:
        assert all((examples.batch(step, 1).labels != IGNORED).any() for step in range(50))


class TestHeldOut:
    def test_each_pair_is_on_one_side_of_the_split_and_none_crosses_it(self, examples: Examples) -> None:
        c = examples.corpus
        training, held_out = corpus.split(c, 0.1)
        assert held_out is not None
        assert training.size + held_out.size == c.size
        assert 0.1 * c.size <= held_out.size < 0.1 * c.size + 12  # Utterances of the longest conversation.
        parts = [(p.utterance(i), p.utterance(i + 1)) for p in (training, held_out) for i in p.firsts]
        assert [(*map(tuple, p),) for p in parts] == [(tuple(c.utterance(i)), tuple(c.utterance(i + 1))) for i in c.firsts]

    def test_a_single_conversation_has_nothing_held_out(self, tmp_path: Path) -> None:
        tokenizer = wordpiece.trained(lambda: ["a b c"], 100)
        corpus.write(tmp_path, [["a", "b", "c", "a", "b", "c"]], tokenizer)
        whole = corpus.read(tmp_path)
        assert corpus.split(whole, 0.5) == (whole, None)

    def test_held_out_utterances_that_are_all_equal_are_not_scored(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "a.txt").write_text("\n".join("abcdefghijklmnopqrstuvwxyz") + "\n\nyes\nyes\nyes\n")
        rest = [*QUICK, str(tmp_path / "run")]
        assert main([str(tmp_path), *rest]) == 0
        said = capsys.readouterr().out
        assert "training pairs:" in said
        assert "held-out" not in said


class TestRun:
    def test_a_killed_and_resumed_run_has_the_same_curve_and_weights_bit_for_bit(self, tmp_path: Path) -> None:
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        pretrain(small(), whole, 12, save_every=4)
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in vars(small()).items() if name != "folder"]
        script = (
            "import os, sys; from conformance.implementations.demystified import pretrain as p, trainer as t\n"
            "step = t.Trainer.step\n"
            "def killed(self, batch):\n"
            "    if self.steps == 6: os.kill(os.getpid(), 9)\n"
            "    return step(self, batch)\n"
            "t.Trainer.step = killed\n"
            "p.main(sys.argv[1:])"
        )
        rest = [*arguments, "--out", str(parts), "--steps", "12", "--save-every", "4"]
        assert run_python("-c", script, *rest).returncode == -9
        assert newest(parts).name == "checkpoint-000000004"
        assert main([*rest, "--resume"]) == 0
        assert (parts / "curve.jsonl").read_bytes() == (whole / "curve.jsonl").read_bytes()
        for file in ("model.safetensors", "training.safetensors"):
            assert (newest(parts) / file).read_bytes() == (newest(whole) / file).read_bytes()

    def test_a_run_interrupted_while_the_corpus_is_read_or_written_starts_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*_: object) -> None:
            (tmp_path / "partial" / "ids").write_bytes(b"half")
            raise KeyboardInterrupt

        rest = [*QUICK, str(tmp_path)]
        for module, name in ((wordpiece, "trained"), (corpus, "write")):
            with monkeypatch.context() as patch:
                patch.setattr(module, name, interrupted)
                assert main(rest) == 130
            assert not (tmp_path / "corpus").exists()
        assert main([*rest, "--resume"]) == 0
        assert corpus.read(tmp_path / "corpus").size == 329
        assert not (tmp_path / "partial").exists()

    def test_a_folder_in_use_by_another_training_process_is_refused_with_its_process_id(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rest = [*QUICK, str(tmp_path)]
        with locked(tmp_path):
            assert main(rest) == 2
        assert f"process {os.getpid()} trains in {tmp_path}" in capsys.readouterr().err
        assert main(rest) == 0

    def test_the_page_is_opened_only_where_a_user_can_see_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened: list[str] = []
        monkeypatch.setattr(webbrowser, "open", opened.append)
        monkeypatch.setattr("conformance.implementations.demystified.pretrain.pretrain", lambda *_, **__: Path("/run/curve.html"))
        monkeypatch.setattr("sys.platform", "linux")
        for arguments, terminal, environment, opens in (
            ([], True, {"DISPLAY": ":0"}, True),
            ([], True, {"BROWSER": "x"}, True),
            (["--no-open"], True, {"DISPLAY": ":0"}, False),
            ([], False, {"DISPLAY": ":0"}, False),
            ([], True, {}, False),
            ([], True, {"DISPLAY": ":0", "CI": "true"}, False),
        ):
            with monkeypatch.context() as patch:
                patch.setattr("os.environ", environment)
                patch.setattr("sys.stdout", SimpleNamespace(isatty=lambda terminal=terminal: terminal, write=len, flush=int))
                assert main(arguments) == 0
            assert opened == (["file:///run/curve.html"] if opens else [])
            opened.clear()

    def test_a_run_is_not_overwritten_and_not_resumed_with_other_settings(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rest = [*QUICK, str(tmp_path / "run")]
        assert main(rest) == 0
        assert main(rest) == 2
        assert "go on with --resume" in capsys.readouterr().err
        assert main([*rest, "--resume", "--seed=1"]) == 2
        assert "seed was 0" in capsys.readouterr().err

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
        pretrain(settings, tmp_path, 150, save_every=150)
        rows = curve.read(tmp_path)
        first, last = together(rows[:50]), together(rows[-50:])
        ids = np.array(corpus.read(tmp_path / "corpus").ids)
        frequencies = np.bincount(ids) / ids.size
        entropy = float(-(frequencies[frequencies > 0] * np.log(frequencies[frequencies > 0])).sum())
        assert last.masked_lm_loss < entropy < first.masked_lm_loss
        assert last.next_sentence_loss < math.log(2) < first.next_sentence_loss
        assert last.p_value < ALPHA < first.p_value
        said = f"last 50 steps, training pairs: {last}"
        assert said in capsys.readouterr().out
        page = (tmp_path / "curve.html").read_text()
        assert said in page
        assert page.count("<polyline") == 4
        checkpoint = load_directory(newest(tmp_path))
        assert checkpoint.architecture.heads == ("plain_masked_lm", "plain_next_sentence")
        vocabulary = tuple((newest(tmp_path) / "vocab.txt").read_text().split("\n")[:-1])
        examples = Examples(corpus.read(tmp_path / "corpus"), vocabulary, 24, 0)
        assert check(demystified, golden_of("trained", checkpoint, {"batch": examples.batch(0, 4)})).outcome == "pass"
