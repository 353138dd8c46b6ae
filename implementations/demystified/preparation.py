"""Preparation of a folder of dialogues for training: the vocabulary, and the corpus as token ids.

Everything is written under a temporary name and renamed when it is complete, so that a run killed during preparation starts over.
"""

import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from tokenizers import Tokenizer

from conformance import UsageError

from . import corpus, wordpiece
from .conversations import Skipped
from .dialogues import Dialogues
from .settings import Settings

PREPARED, PARTIAL = "corpus", "partial"  # name of the folder, and its temporary name
SETTINGS, TOKENIZER = "settings.json", "tokenizer.json"


def prepared(settings: Settings, out: Path, resume: bool, console: Console) -> tuple[corpus.Corpus, Tokenizer]:
    """Return the corpus and the tokenizer, newly made or those of the resumed run.

    Args:
        settings: the settings of the run.
        out: folder of the run.
        resume: whether to resume the run in `out`.
        console: console for messages.

    Raises:
        UsageError: the dialogues cannot be read, or `out` holds a run that is not resumed or has other settings.
    """
    folder = out / PREPARED
    if not folder.is_dir():
        _prepare(settings, folder, console)
    elif not resume:
        raise UsageError(f"{out} has a run in it; go on with --resume, or choose another folder with --out")
    before, now = json.loads((folder / SETTINGS).read_text()), asdict(settings)
    if before != now:
        other = [f"{name} was {before.get(name)!r}" for name, value in now.items() if before.get(name) != value]
        raise UsageError(f"the run in {out} has other settings: {', '.join(other)}")
    return corpus.read(folder), Tokenizer.from_file(str(folder / TOKENIZER))


def _prepare(settings: Settings, folder: Path, console: Console) -> None:
    """Write the folder, and print what was read."""
    start, partial = time.perf_counter(), folder.with_name(PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    index = partial / "utterances.sqlite"
    dialogues = Dialogues(Path(settings.folder), index)
    tokenizer = wordpiece.trained(lambda: (text for each in dialogues for text in each), settings.vocabulary_size)
    corpus.write(partial, dialogues, tokenizer)
    index.unlink(missing_ok=True)
    tokenizer.save(str(partial / TOKENIZER))
    (partial / SETTINGS).write_text(json.dumps(asdict(settings), indent=2) + "\n")
    size = corpus.read(partial).size
    partial.rename(folder)
    _report(dialogues.skipped, console)
    rate = size / (time.perf_counter() - start)
    console.print(f"{size} utterances, {rate:.0f} a second; {tokenizer.get_vocab_size()} pieces")


def _report(skipped: Skipped, console: Console) -> None:
    for kind, count in skipped.counts.items():
        console.print(f"{count} skipped: {kind}", markup=False)
    for place in skipped.places:
        console.print(f"  {place}", markup=False)
