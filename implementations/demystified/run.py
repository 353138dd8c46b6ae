"""A pre-training run in a folder, from the dialogues to the page of its curves.

The folder has the settings, the tokenizer, the last checkpoint, and the curve: one line of JSON per step, the network's scores on
the step's batch before the update. What a resumed run needs beside these is computed again.
"""

import json
from collections import deque
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from tokenizers import Tokenizer
from torch import nn

from conformance import Architecture, UsageError

from ..initialization import initialized
from . import checkpoints, wordpiece
from .candidate import build
from .corpus import split, tokenized
from .curves import LAST, Scores, page, summary, together
from .dialogues import Skipped, dialogues
from .examples import Examples
from .network import BERTLM
from .settings import Settings
from .trainer import Trainer

SETTINGS, TOKENIZER, CURVE, PAGE = "settings.json", "tokenizer.json", "curve.jsonl", "curve.html"
HELD_OUT = 0.1  # fraction of the utterances
EVALUATED = 1000  # maximum number of held-out pairs; the standard error of their accuracy is then 1.6 %


@dataclass(frozen=True)
class Run:
    """The state of a run.

    Attributes:
        settings, out, device: the arguments of `pretrain`.
        tokenizer, architecture: tokenizer and architecture of the network.
        training, held_out: the examples; `held_out` is None if the corpus is too small to be split.
        trainer: the trainer, at the step from which the run continues.
    """

    settings: Settings
    out: Path
    device: str
    tokenizer: Tokenizer
    architecture: Architecture
    training: Examples
    held_out: Examples | None
    trainer: Trainer


def pretrain(
    settings: Settings, out: Path, steps: int, *, device: str = "cpu", save_every: int = 100, resume: bool = False
) -> Path:
    """Train to step `steps`, from the start or from the last checkpoint, and write the page of the curves.

    Args:
        settings: the settings of the run.
        out: folder of the run.
        steps: the step to train to.
        device: a torch device string.
        save_every: steps between checkpoints.
        resume: whether to continue from the last checkpoint.

    Returns:
        The path of the page.

    Raises:
        UsageError: the corpus cannot be read, `out` holds another run, or a number is out of its range.
    """
    if min(steps, save_every) < 1:
        raise UsageError("expected steps and save-every of 1 or more")
    console = Console(stderr=True)
    run = _opened(settings, out, steps, device, resume, console)
    _train(run, steps, save_every, console)
    rows = read_curve(out)
    said = summary(rows, _held_out_scores(run))
    (out / PAGE).write_text(page(rows, said))
    print(*said, f"{checkpoints.newest(out)} has the network, {out / PAGE} the curves of loss and accuracy", sep="\n")
    return out / PAGE


def _opened(settings: Settings, out: Path, steps: int, device: str, resume: bool, console: Console) -> Run:
    """Return the run at its first step, or at the step of its last checkpoint."""
    _require_same(settings, out, resume)
    conversations, skipped = dialogues(Path(settings.folder))
    _report(skipped, console)
    if (out / SETTINGS).is_file():  # written after the tokenizer
        tokenizer = Tokenizer.from_file(str(out / TOKENIZER))
    else:
        tokenizer = wordpiece.trained(lambda: (text for each in conversations for text in each), settings.vocabulary_size)
    corpus = tokenized(conversations, tokenizer)
    console.print(f"{corpus.size} utterances; {tokenizer.get_vocab_size()} pieces")
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / TOKENIZER))
    (out / SETTINGS).write_text(json.dumps(asdict(settings), indent=2) + "\n")
    examples = partial(Examples, vocabulary=tuple(wordpiece.pieces(tokenizer)), length=settings.length, seed=settings.seed)
    training, held_out = split(corpus, HELD_OUT)
    architecture = settings.architecture(tokenizer.get_vocab_size())
    trainer = Trainer(_network(architecture, settings.seed).to(device), settings.training(steps))
    found = checkpoints.newest(out) if resume else None
    if found is not None:
        checkpoints.restore(found, trainer, architecture)
    unseen = None if held_out is None else examples(held_out)
    return Run(settings, out, device, tokenizer, architecture, examples(training), unseen, trainer)


def _require_same(settings: Settings, out: Path, resume: bool) -> None:
    """Raise `UsageError` if `out` holds a run that is not resumed or has other settings."""
    if not (out / SETTINGS).is_file():
        return
    if not resume:
        raise UsageError(f"{out} has a run in it; go on with --resume, or choose another folder with --out")
    before, now = json.loads((out / SETTINGS).read_text()), asdict(settings)
    if before != now:
        other = [f"{name} was {before.get(name)!r}" for name, value in now.items() if before.get(name) != value]
        raise UsageError(f"the run in {out} has other settings: {', '.join(other)}")


def _report(skipped: Skipped, console: Console) -> None:
    for kind, count in skipped.counts.items():
        console.print(f"{count} skipped: {kind}", markup=False)
    for place in skipped.places:
        console.print(f"  {place}", markup=False)


def _network(architecture: Architecture, seed: int) -> BERTLM:
    """Return the network initialized for training."""
    torch.manual_seed(seed)
    model = build(architecture)
    initialized(model, architecture.initializer_range)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            # The sum with the positions, of size 1, is not normalised: smaller embeddings would be negligible beside them
            # (Vaswani et al. 2017, section 3.4).
            nn.init.normal_(module.weight)
    return model


def read_curve(folder: Path) -> list[Scores]:
    """Return the scores of every step."""
    rows = (json.loads(line) for line in (folder / CURVE).read_text().splitlines())
    return [Scores(**{field.name: row[field.name] for field in fields(Scores)}) for row in rows]


def _train(run: Run, steps: int, save_every: int, console: Console) -> None:
    """Train to step `steps`, with a checkpoint every `save_every` steps and at the end."""
    trainer, curve = run.trainer, run.out / CURVE
    kept = curve.read_text().splitlines(keepends=True)[: trainer.steps] if curve.is_file() else []
    curve.write_text("".join(kept))  # without lines of later steps, complete or not
    with open(curve, "a", buffering=1) as file, _bar(console) as bar:  # line by line, so that it can be watched
        recent = deque(read_curve(run.out)[-LAST:], LAST)
        task = bar.add_task("", total=steps, completed=trainer.steps)
        while trainer.steps < steps:
            row = {"step": trainer.steps, "learning_rate": trainer.rate()}
            recent.append(_step(run))
            file.write(json.dumps({**row, **asdict(recent[-1])}) + "\n")
            bar.update(task, completed=trainer.steps, description=_line(recent))
            if trainer.steps % save_every == 0 or trainer.steps == steps:
                checkpoints.save(run.out, trainer, run.architecture, run.tokenizer)


def _step(run: Run) -> Scores:
    """Perform one training step."""
    step = run.trainer.steps
    # Dropout's random numbers are a function of the step, so that no state of the generator has to be saved.
    torch.manual_seed((run.settings.seed << 32) + step)
    return run.trainer.step(run.training.batch(step, run.settings.batch_size).on(run.device))


def _held_out_scores(run: Run) -> Scores | None:
    """Return the scores of the held-out pairs, each used once, or None; pairs that do not fill a batch are left out."""
    if run.held_out is None:
        return None
    pairs = min(len(run.held_out.corpus.firsts), EVALUATED)
    size = min(run.settings.batch_size, pairs)
    try:
        batches = [run.held_out.batch(n, size).on(run.device) for n in range(pairs // size)]
    except UsageError:  # all of its utterances are equal
        return None
    return together([run.trainer.evaluated(batch) for batch in batches])


def _line(recent: Collection[Scores]) -> str:
    scores = together(recent)
    accuracies = f"masked LM {scores.masked_lm_accuracy:.0%} right, next sentence {scores.next_sentence_accuracy:.0%}"
    return f"last {len(recent)} steps: loss {scores.masked_lm_loss + scores.next_sentence_loss:.3f}, {accuracies}"


def _bar(console: Console) -> Bar:
    return Bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console)
