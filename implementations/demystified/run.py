"""A pre-training run in a folder, from the dialogues to the page of its curves.

The folder gets the settings, the curve (one line of JSON per step: the network's scores on the step's batch before the update), the
page of the curves, and the trained network as a Hugging Face directory.
"""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn

from conformance import Architecture, UsageError

from ..initialization import initialized
from . import wordpiece
from .candidate import PARAMETERS, build
from .corpus import split, tokenized
from .curves import LAST, Scores, page, summary, together
from .dialogues import Skipped, dialogues
from .examples import Examples
from .network import BERTLM
from .settings import Settings
from .trainer import Trainer

SETTINGS, CURVE, PAGE, NETWORK = "settings.json", "curve.jsonl", "curve.html", "network"
HELD_OUT = 0.1  # fraction of the utterances
EVALUATED = 1000  # maximum number of held-out pairs; the standard error of their accuracy is then 1.6 %


@dataclass(frozen=True)
class Run:
    """What a run trains, and on what.

    Attributes:
        settings, device: the arguments of `pretrain`.
        tokenizer, architecture: tokenizer and architecture of the network.
        training, held_out: the examples; `held_out` is None if the corpus is too small to be split.
        trainer: the trainer.
    """

    settings: Settings
    device: str
    tokenizer: Tokenizer
    architecture: Architecture
    training: Examples
    held_out: Examples | None
    trainer: Trainer


def pretrain(settings: Settings, out: Path, steps: int, *, device: str = "cpu") -> list[Scores]:
    """Train for `steps` steps, and write the network and the page of the curves.

    Args:
        settings: the settings of the run.
        out: folder of the run.
        steps: number of steps.
        device: a torch device string.

    Returns:
        The scores of every step.

    Raises:
        UsageError: the corpus cannot be read, `out` holds a run, or `steps` is below 1.
    """
    if steps < 1:
        raise UsageError("expected steps of 1 or more")
    if (out / SETTINGS).is_file():
        raise UsageError(f"{out} has a run in it; choose another folder with --out")
    console = Console(stderr=True)
    run = _prepared(settings, steps, device, console)
    out.mkdir(parents=True, exist_ok=True)
    (out / SETTINGS).write_text(json.dumps(asdict(settings), indent=2) + "\n")
    rows = _train(run, steps, out / CURVE, console)
    lines = summary(rows, _held_out_scores(run))
    _save(run, out / NETWORK)
    (out / PAGE).write_text(page(rows, lines))
    print(*lines, f"{out / NETWORK} has the network, {out / PAGE} the curves of loss and accuracy", sep="\n")
    return rows


def _prepared(settings: Settings, steps: int, device: str, console: Console) -> Run:
    """Return the run before its first step."""
    conversations, skipped = dialogues(Path(settings.folder))
    _report(skipped, console)
    tokenizer = wordpiece.trained(lambda: (text for each in conversations for text in each), settings.vocabulary_size)
    corpus = tokenized(conversations, tokenizer)
    console.print(f"{corpus.size} utterances; {tokenizer.get_vocab_size()} pieces")
    examples = partial(Examples, vocabulary=tuple(wordpiece.pieces(tokenizer)), length=settings.length, seed=settings.seed)
    training, held_out = split(corpus, HELD_OUT)
    architecture = settings.architecture(tokenizer.get_vocab_size())
    trainer = Trainer(_network(architecture, settings.seed).to(device), settings.training(steps))
    unseen = None if held_out is None else examples(held_out)
    return Run(settings, device, tokenizer, architecture, examples(training), unseen, trainer)


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


def _train(run: Run, steps: int, curve: Path, console: Console) -> list[Scores]:
    """Train, and write each step's scores."""
    rows: list[Scores] = []
    with open(curve, "w", buffering=1) as file, _bar(console) as bar:  # line by line, so that it can be watched
        task = bar.add_task("", total=steps)
        for step in range(steps):
            row = {"step": step, "learning_rate": run.trainer.rate()}
            rows.append(run.trainer.step(run.training.batch(step, run.settings.batch_size).on(run.device)))
            file.write(json.dumps({**row, **asdict(rows[-1])}) + "\n")
            bar.update(task, completed=step + 1, description=_line(rows[-LAST:]))
    return rows


def _save(run: Run, folder: Path) -> None:
    """Write the network as a Hugging Face directory."""
    folder.mkdir(exist_ok=True)
    config = {"model_type": "bert", "architectures": ["BERTLM"], **run.architecture.as_dict()}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "vocab.txt").write_text("\n".join(wordpiece.pieces(run.tokenizer)) + "\n")
    run.tokenizer.save(str(folder / "tokenizer.json"))
    state, layers = run.trainer.model.state_dict(), run.architecture.num_hidden_layers
    parameters = {
        theirs.format(layer=i): state[ours.format(layer=i)].detach().cpu().contiguous()
        for ours, theirs in PARAMETERS.items()
        for i in range(layers if "{layer}" in ours else 1)
    }
    save_file(parameters, folder / "model.safetensors")


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
