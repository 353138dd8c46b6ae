"""Goldens of the user's own: any local checkpoint on any inputs, with true activations computed by the oracle when needed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from conformance.errors import UsageError
from conformance.goldens.batches import SEED, batch, drawn
from conformance.goldens.golden import Golden, load_golden
from conformance.model.architecture import MULTI_LABEL, SINGLE_LABEL, Architecture
from conformance.model.batch import IGNORED_LABEL, Batch
from conformance.model.checkpoint import Checkpoint
from conformance.model.directory import files_of, load_directory
from conformance.model.files import read_json, read_safetensors, reading, stamps_of
from conformance.model.tokenizer import tokenized

_MASKS = ("1111111111111111", "1111111111000000", "0000011111111111", "1101101011101101")


PREFIX = "checkpoint:"  # prefix of a golden name that is a directory


def open_golden(name: str) -> Golden:
    """Return the stored golden with that name or folder or, for `checkpoint:DIR`, the local checkpoint on a generated batch."""
    return from_directory(Path(name.removeprefix(PREFIX))) if name.startswith(PREFIX) else load_golden(name)


def recorded_as(name: str, source: str) -> str:
    """Return the argument with which `open_golden` opens a golden recorded in results.

    This is the recorded source for the user's own goldens, and the name for shipped goldens.
    """
    return source if source.startswith(PREFIX) or Path(source).is_absolute() else name


def golden_of(name: str, checkpoint: Checkpoint, batches: Mapping[str, Batch]) -> Golden:
    """Return a checkpoint and inputs as a golden.

    Raises:
        UsageError: an input does not fit the architecture.

    Example:
        >>> network = load_golden("tiny").checkpoint
        >>> golden_of("mine", network, {"one": Batch(np.array([[3, 1, 4, 1, 5]]))}).name
        'mine'
    """
    for which, given in batches.items():
        for misfit in _misfits(given, checkpoint.architecture):
            raise UsageError(f"batch {which}: {misfit}")
    return Golden(name, 0, batches, lambda: checkpoint)


def from_directory(folder: Path, texts: Sequence[str] = (), file: Path | None = None) -> Golden:
    """Return a golden of a local Hugging Face BERT directory.

    Args:
        folder: the directory.
        texts: texts for a batch named `text`.
        file: file of batches. Without texts and file, a batch is generated.

    Raises:
        CheckpointError: the directory or its tokenizer cannot be read.
        UsageError: the file cannot be read, or an input does not fit the network.
    """
    files = stamps_of(files_of(folder.resolve()))
    checkpoint = load_directory(folder)
    batches = _given(folder, texts, file)
    if not batches:
        length = min(len(_MASKS[0]), checkpoint.architecture.longest)
        masks = drawn([mask[:length] for mask in _MASKS if "1" in mask[:length]])
        batches["generated"] = batch(SEED, checkpoint.architecture, masks)
    own = golden_of(folder.resolve().name, checkpoint, batches)
    return replace(own, origin=f"{PREFIX}{folder.resolve()}", folder=folder.resolve(), files=files)


def on_inputs(golden: Golden, texts: Sequence[str] = (), file: Path | None = None) -> Golden:
    """Return a golden with the same network on other inputs: texts, read by its tokenizer, and the batches in `file`.

    Raises:
        DependencyMissingError: the network comes from a package that is not installed.
        UsageError: there is no tokenizer for the texts, or an input does not fit the network.
    """
    checkpoint = golden.checkpoint  # loaded first: if its package is not installed, the tokenizer is missing too
    if texts and golden.folder is None:
        raise UsageError(
            f"golden {golden.name} has no tokenizer, so it takes no texts: take --golden minilm, a checkpoint of your own with "
            "--checkpoint DIR, or token ids with --batch FILE"
        )
    fitting = golden_of(golden.name, checkpoint, _given(golden.folder, texts, file))
    return replace(fitting, origin=golden.origin or golden.name, folder=golden.folder, files=golden.files)


def _given(folder: Path | None, texts: Sequence[str], file: Path | None) -> dict[str, Batch]:
    """Return the texts as the batch `text`, tokenized with the tokenizer in `folder`, and the batches in `file`."""
    batches = {"text": tokenized(folder, [(text, None) for text in texts])} if folder and texts else {}
    found = read_batches(file) if file else {}
    if batches.keys() & found.keys():
        raise UsageError(f"{file} has a batch called 'text', as the texts are that are given beside it; call it otherwise")
    return batches | found


def read_batches(file: Path) -> dict[str, Batch]:
    """Return the batches in a file, by name.

    The file is JSON or safetensors, with one batch (`{"input_ids": [[…]], …}`) or several by name (`{"a": {…}}`, or keys
    `a/input_ids`).

    Raises:
        UsageError: the file cannot be read, or contains something other than batches.
    """
    with reading(file, "a batch", UsageError):
        return _batches(file)


def _batches(file: Path) -> dict[str, Batch]:
    found: dict[str, Any] = {}
    if file.suffix == ".safetensors":
        for key, array in read_safetensors(file)[0].items():
            which, _, name = key.removeprefix("batch/").rpartition("/")
            found.setdefault(which or file.stem, {})[name] = array
    else:
        found = read_json(file, dict[str, Any])
    if "input_ids" in found:
        found = {file.stem: found}
    wrong = [name for name, part in found.items() if not isinstance(part, dict) or "/" in name]
    if wrong or not found:
        raise UsageError(f"{file} holds no batch: {', '.join(wrong) or 'it is empty'}; expected input_ids and what belongs to them")
    return {name: Batch.of(part) for name, part in found.items()}


def fits(given: Batch, a: Architecture) -> bool:
    """Return whether the network accepts the batch."""
    return not any(_misfits(given, a))


def _misfits(given: Batch, a: Architecture) -> Iterator[str]:
    """Yield what of a batch the network does not accept, in words."""
    empty = np.flatnonzero(~given.mask.any(1))
    if empty.size:
        yield f"attention_mask is 0 all over row {empty[0]}; what a BERT makes of that is undefined"
    if given.length > a.longest:
        yield f"{given.length} tokens, and the network takes at most {a.longest}"
    yield from _misfits_of_attention(given, a)
    yield from _misfits_of_classes(given, a)
    choices = given.size // (1 if given.choice_labels is None else len(given.choice_labels))
    labels = {
        **{"labels": a.vocab_size, "next_sentence_label": 2, "class_labels": a.num_labels, "token_labels": a.num_labels},
        **{"start_positions": given.length, "end_positions": given.length, "choice_labels": choices},
    }
    for what, limit in labels.items():
        array = getattr(given, what)
        if array is not None and ((array != IGNORED_LABEL) & ((array < 0) | (array >= limit))).any():
            yield f"{what} has labels outside 0 to {limit - 1}, other than {IGNORED_LABEL}"
    ids = {"input_ids": "vocab_size", "token_type_ids": "type_vocab_size", "position_ids": "max_position_embeddings"}
    for what, setting in ids.items():
        array, limit = getattr(given, what), getattr(a, setting)
        if array is not None and len(outside := np.argwhere((array < 0) | (array >= limit))):
            yield f"{what}{outside[0].tolist()} is {array[tuple(outside[0])]}, expected 0 to {limit - 1} ({setting})"


def _misfits_of_attention(given: Batch, a: Architecture) -> Iterator[str]:
    """Yield what is wrong with encoder states, and with decoder tokens whose allowed keys are all later."""
    states = given.encoder_hidden_states
    if states is not None and not a.add_cross_attention:
        yield "there are encoder_hidden_states, and the network has no cross-attention; leave them out"
    elif states is not None and states.shape[-1] != a.hidden_size:
        yield f"encoder_hidden_states are {states.shape[-1]} wide, expected {a.hidden_size} (hidden_size)"
    if a.is_decoder:
        keys = given.keys & np.tri(given.length, dtype=np.bool_)
        without = np.argwhere(given.mask & ~keys.any(-1))
        if without.size:
            row, query = without[0]
            yield (
                f"attention_mask lets token {query} of row {row} attend to later tokens alone, and a decoder has none for it; what "
                "that computes is undefined"
            )


def _misfits_of_classes(given: Batch, a: Architecture) -> Iterator[str]:
    """Yield what is wrong with labels of sequences for the problem for which the classifier is trained."""
    problem = f"the network's problem is {a.problem} with num_labels {a.num_labels}"
    if given.class_labels is not None and a.problem != SINGLE_LABEL:
        yield f"there are class_labels, and {problem}; give class_targets, (B, {a.num_labels}) numbers"
    if given.class_targets is None:
        return
    if a.problem == SINGLE_LABEL:
        yield f"there are class_targets, and {problem}; give class_labels, (B,) integers"
    if given.class_targets.shape[1] != a.num_labels:
        yield f"class_targets are {given.class_targets.shape[1]} a row, expected {a.num_labels} (num_labels)"
    if a.problem == MULTI_LABEL and ((given.class_targets < 0.0) | (given.class_targets > 1.0)).any():
        yield f"class_targets has values outside 0 to 1, and {problem}"
