"""Pre-train on dialogues: `python -m implementations.demystified.pretrain [FOLDER]`, without a folder on the package's own."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from tokenizers import Tokenizer

from conformance import Architecture, ConformanceError, Training, UsageError
from implementations.demystified import checkpoints, corpus, wordpiece
from implementations.demystified.candidate import build
from implementations.demystified.dialogues import OWN, Dialogues
from implementations.demystified.examples import Examples
from implementations.demystified.page import page
from implementations.demystified.trainer import Progress, Trainer
from implementations.initialization import initialized

CURVE, SETTINGS, PAGE = "curve.jsonl", "settings.json", "curve.html"


@dataclass(frozen=True)
class Settings:
    """What a run depends on, but for the number of steps.

    Attributes:
        folder: that of the dialogues.
        vocabulary_size, length, batch_size: pieces at most; tokens of a row at most; rows of a batch.
        layers, hidden_size, heads: of the network; the intermediate size is four times the hidden size.
        learning_rate, warmup_steps: the largest rate, and when it is reached.
        seed: of all that is drawn.
    """

    folder: str
    vocabulary_size: int = 30_000
    length: int = 64
    batch_size: int = 32
    layers: int = 2
    hidden_size: int = 128
    heads: int = 4
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    seed: int = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 2 for what cannot be run, or 130 after an interrupt."""
    a = _arguments(arguments)
    try:
        settings = Settings(**{name: value for name, value in vars(a).items() if name in Settings.__dataclass_fields__})
        pretrain(settings, Path(a.out), a.steps, device=a.device, save_every=a.save_every, resume=a.resume)
    except ConformanceError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; repeat the command with --resume to go on from the last checkpoint", file=sys.stderr)
        return 130
    return 0


def pretrain(
    settings: Settings, out: Path, steps: int, *, device: str = "cpu", save_every: int = 100, resume: bool = False
) -> None:
    """Train to step `steps`, from the start or from the last checkpoint, and write the page.

    Raises:
        UsageError: the corpus cannot be read, `out` has another run in it, or a number is out of its range.
        UnsupportedArchitectureError: there is no network of these sizes.
    """
    if (
        min(steps, save_every, settings.length - 4, settings.batch_size, settings.warmup_steps) < 1
        or not 0 <= settings.seed < 2**31
    ):
        raise UsageError(
            "expected steps, save-every, batch-size and warmup-steps of 1 or more, length of 5, seed from 0 to 2³¹ − 1"
        )
    _architecture(settings, len(wordpiece.SPECIAL))  # refused before anything is written
    console = Console(stderr=True)
    examples, tokenizer = _prepared(settings, out, resume, console)
    architecture = _architecture(settings, len(examples.vocabulary))
    torch.manual_seed(settings.seed)
    model = initialized(build(architecture), architecture.initializer_range).to(device)
    training = Training(
        learning_rate=settings.learning_rate,
        lr_scheduler_type="inverse_sqrt",
        warmup_steps=settings.warmup_steps,
        max_steps=max(steps, settings.warmup_steps + 1),
    )
    trainer, curve = Trainer(model, training), out / CURVE  # type: ignore[arg-type]  # `initialized` gives the module it is given
    found = checkpoints.newest(out) if resume else None
    if found is not None:
        checkpoints.restore(found, trainer, architecture)
    kept = curve.read_text().splitlines(keepends=True)[: trainer.steps] if curve.is_file() else []
    curve.write_text("".join(kept))
    with open(curve, "a") as file, _bar(console) as bar:
        task = bar.add_task("", total=steps, completed=trainer.steps)
        while trainer.steps < steps:
            # Dropout's random numbers are a function of the step, so that nothing of them has to be kept.
            torch.manual_seed((settings.seed << 32) + trainer.steps)
            seen = trainer.step(examples.batch(trainer.steps, settings.batch_size).on(device))
            file.write(json.dumps({"step": trainer.steps, **asdict(seen)}) + "\n")
            bar.update(task, completed=trainer.steps, description=_said(seen))
            if trainer.steps % save_every == 0 or trainer.steps == steps:
                file.flush()
                checkpoints.save(out, trainer, architecture, tokenizer)
    rows = [json.loads(line) for line in curve.read_text().splitlines()]
    (out / PAGE).write_text(page(rows))
    print(f"{checkpoints.newest(out)} has the network, {out / PAGE} the curves of loss and accuracy")


def _prepared(settings: Settings, out: Path, resume: bool, console: Console) -> tuple[Examples, Tokenizer]:
    """The examples and the tokenizer: made, or those of the run that is resumed."""
    written = out / SETTINGS
    if written.is_file():
        before = json.loads(written.read_text())
        if not resume:
            raise UsageError(f"{out} has a run in it; go on with --resume, or choose another folder with --out")
        if before != asdict(settings):
            other = [f"{name} was {before.get(name)!r}" for name, value in asdict(settings).items() if before.get(name) != value]
            raise UsageError(f"the run in {out} has other settings: {', '.join(other)}")
        tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    else:
        out.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        dialogues = Dialogues(Path(settings.folder), out / "utterances.sqlite")
        tokenizer = wordpiece.trained(lambda: (text for each in dialogues for text in each), settings.vocabulary_size)
        corpus.write(out, dialogues, tokenizer)
        tokenizer.save(str(out / "tokenizer.json"))
        rate = corpus.read(out).size / (time.perf_counter() - start)
        for kind, count in dialogues.skipped.counts.items():
            console.print(f"{count} skipped: {kind}", markup=False)
        for place in dialogues.skipped.places:
            console.print(f"  {place}", markup=False)
        console.print(f"{corpus.read(out).size} utterances, {rate:.0f} a second; {tokenizer.get_vocab_size()} pieces")
        written.write_text(json.dumps(asdict(settings), indent=2) + "\n")  # last: what is before it is whole
    return Examples(corpus.read(out), tuple(wordpiece.pieces(tokenizer)), settings.length, settings.seed), tokenizer


def _architecture(settings: Settings, vocabulary_size: int) -> Architecture:
    return Architecture(
        vocab_size=vocabulary_size,
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=4 * settings.hidden_size,
        max_position_embeddings=settings.length,
        type_vocab_size=3,
        position_embedding_type="sinusoidal",
        embedding_norm=False,
        pooler=False,
        heads=("plain_masked_lm", "plain_next_sentence"),
        activation_dropout=0.1,
    )


def _said(seen: Progress) -> str:
    masked = seen.masked_lm_correct / max(seen.masked_lm_count, 1)
    following = seen.next_sentence_correct / seen.next_sentence_count
    return f"loss {seen.loss:.3f}, masked LM {masked:.0%} right, next sentence {following:.0%}"


def _bar(console: Console) -> Bar:
    return Bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m implementations.demystified.pretrain", description=__doc__)
    parser.add_argument("folder", nargs="?", default=str(OWN), help="the Cornell corpus's two files, or .txt files")
    parser.add_argument("--out", default="pretrained", help="where checkpoints, curve and page are written")
    parser.add_argument("--steps", type=int, default=300, help="train until this step")
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--device", default="cpu")
    for name, field in Settings.__dataclass_fields__.items():
        if name != "folder":
            kind = float if name == "learning_rate" else int
            parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=field.default)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
