"""Pre-train on dialogues: `python -m implementations.demystified.pretrain [FOLDER]`, without a folder on the package's own."""

import argparse
import os
import sys
import webbrowser
from collections import deque
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TextIO

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch import nn

from conformance import Architecture, ConformanceError, UsageError
from implementations.demystified import checkpoints, curve, wordpiece
from implementations.demystified.candidate import build
from implementations.demystified.corpus import split
from implementations.demystified.dialogues import OWN
from implementations.demystified.examples import Examples
from implementations.demystified.lock import locked
from implementations.demystified.page import page, summary
from implementations.demystified.preparation import prepared
from implementations.demystified.scores import Scores, together
from implementations.demystified.settings import Settings
from implementations.demystified.trainer import Trainer
from implementations.initialization import initialized

PAGE = "curve.html"
HELD_OUT = 0.1  # of the utterances
EVALUATED = 1000  # pairs that are held out, at most: their accuracy's standard error is 1.6 %


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 2 for what cannot be run, or 130 after an interrupt."""
    a = _arguments(arguments)
    try:
        settings = Settings(**{field.name: getattr(a, field.name) for field in fields(Settings)})
        written = pretrain(settings, Path(a.out), a.steps, device=a.device, save_every=a.save_every, resume=a.resume)
    except ConformanceError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; repeat the command with --resume to go on from the last checkpoint", file=sys.stderr)
        return 130
    if a.open and _has_a_viewer():
        webbrowser.open(written.resolve().as_uri())
    return 0


def pretrain(
    settings: Settings, out: Path, steps: int, *, device: str = "cpu", save_every: int = 100, resume: bool = False
) -> Path:
    """Train to step `steps`, from the start or from the last checkpoint, and write the page, whose path is returned.

    Raises:
        UsageError: the corpus cannot be read, `out` has another run in it or is in use, or a number is out of its range.
    """
    if min(steps, save_every) < 1:
        raise UsageError("expected steps and save-every of 1 or more")
    console = Console(stderr=True)
    with locked(out):
        corpus, tokenizer = prepared(settings, out, resume, console)
        examples_of = partial(Examples, vocabulary=tuple(wordpiece.pieces(tokenizer)), length=settings.length, seed=settings.seed)
        training, held_out = split(corpus, HELD_OUT)
        examples = examples_of(training)
        architecture = settings.architecture(tokenizer.get_vocab_size())
        trainer = _trainer(settings, architecture, steps, device)
        found = checkpoints.newest(out) if resume else None
        if found is not None:
            checkpoints.restore(found, trainer, architecture)
        with curve.opened(out, trainer.steps) as file, _bar(console) as bar:
            recent = deque(curve.read(out)[-curve.LAST :], curve.LAST)
            task = bar.add_task("", total=steps, completed=trainer.steps)
            while trainer.steps < steps:
                recent.append(_step(trainer, examples, settings, device, file))
                bar.update(task, completed=trainer.steps, description=_line(together(recent)))
                if trainer.steps % save_every == 0 or trainer.steps == steps:
                    checkpoints.save(out, trainer, architecture, tokenizer)
        unseen = None if held_out is None else _evaluated(trainer, examples_of(held_out), settings.batch_size, device)
        rows = curve.read(out)
        said = summary(rows, unseen)
        (out / PAGE).write_text(page(rows, said))
    print(*said, f"{checkpoints.newest(out)} has the network, {out / PAGE} the curves of loss and accuracy", sep="\n")
    return out / PAGE


def _trainer(settings: Settings, architecture: Architecture, steps: int, device: str) -> Trainer:
    torch.manual_seed(settings.seed)
    model = initialized(build(architecture), architecture.initializer_range)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            # Their sum with the positions, of size 1, has no norm: smaller ones would drown (Vaswani et al. 2017, section 3.4).
            nn.init.normal_(module.weight)
    return Trainer(model.to(device), settings.training(steps))  # type: ignore[arg-type]  # `initialized` gives the module it is given


def _step(trainer: Trainer, examples: Examples, settings: Settings, device: str, file: TextIO) -> Scores:
    """A step of training, and its line of the curve."""
    # Dropout's random numbers are a function of the step, so that nothing of them has to be kept.
    torch.manual_seed((settings.seed << 32) + trainer.steps)
    step, rate = trainer.steps, trainer.rate()
    scores = trainer.step(examples.batch(step, settings.batch_size).on(device))
    curve.append(file, step, scores, rate)
    return scores


def _evaluated(trainer: Trainer, examples: Examples, batch_size: int, device: str) -> Scores:
    """The scores of held-out pairs, each once; those that fill no batch are left out."""
    pairs = min(len(examples.corpus.firsts), EVALUATED)
    size = min(batch_size, pairs)
    return together([trainer.evaluated(examples.batch(n, size).on(device)) for n in range(pairs // size)])


def _line(scores: Scores) -> str:
    loss = scores.masked_lm_loss + scores.next_sentence_loss
    return f"loss {loss:.3f}, masked LM {scores.masked_lm_accuracy:.0%} right, next sentence {scores.next_sentence_accuracy:.0%}"


def _bar(console: Console) -> Bar:
    return Bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console)


def _has_a_viewer() -> bool:
    """Whether someone is there who can see a page: at a terminal, with a display or a browser of their choice, and not in CI."""
    shown = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    return shown and sys.stdout.isatty() and "CI" not in os.environ


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m implementations.demystified.pretrain", description=__doc__)
    parser.add_argument("folder", nargs="?", default=str(OWN), help="the Cornell corpus's two files, .txt or .parquet files")
    parser.add_argument("--out", default="pretrained", help="where checkpoints, curve and page are written")
    parser.add_argument("--steps", type=int, default=300, help="train until this step")
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--no-open", dest="open", action="store_false", help="do not open the page in a browser")
    parser.add_argument("--device", default="cpu")
    for field in fields(Settings):
        if field.name != "folder":
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
