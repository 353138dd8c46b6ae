"""Local Hugging Face directories as checkpoints: the configuration, the parameters, and the heads."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np

from conformance.errors import CheckpointError
from conformance.model.activations import parameter_shapes
from conformance.model.architecture import Architecture
from conformance.model.checkpoint import Checkpoint, LazyWeights, check_parameters
from conformance.model.files import read_json, reading
from conformance.model.model_types import require_bert, require_head
from conformance.model.published_heads import heads_of
from conformance.model.sentence_transformers import MODULES, dense_parameters, sentence_embedding, transformer_folder
from conformance.model.stored import ABSOLUTE_POSITIONS, BUFFERS, COPIES, PICKLE, SAFETENSORS, Stored, stored_parameters


def load_directory(folder: Path | str) -> Checkpoint:
    """Load a local Hugging Face BERT directory, which has a `config.json` and a `model.safetensors`.

    Parameter names may be with or without the prefix `bert.` and may use the old names of LayerNorm parameters. The heads are those
    whose parameters are stored, as `BertForPreTraining`, `BertForMaskedLM`, `BertLMHeadModel`, `BertForNextSentencePrediction`,
    `BertForSequenceClassification`, `BertForTokenClassification`, `BertForQuestionAnswering` and `BertForMultipleChoice` store
    them. For the three with a classifier, the config's `architectures` distinguishes them. A RoBERTa, XLM-RoBERTa or CamemBERT is
    read as a BERT whose positions have an offset. In a directory of sentence-transformers (`modules.json`), the pooling, dense
    layers and normalization are read as well.

    Raises:
        CheckpointError: a file is missing or cannot be read; or parameters are missing, unexpected, of the wrong shape, given
            twice, or differ from the parameter that they should be a copy of. The message lists all of them.
        UnsupportedArchitectureError: there are no equations for the architecture.

    Example:
        >>> load_directory("no-such-folder")
        Traceback (most recent call last):
        ...
        conformance.errors.CheckpointError: no-such-folder is not a local folder
    """
    folder = Path(folder)
    with reading(folder, "a checkpoint", CheckpointError):
        return _loaded(folder)


def files_of(folder: Path) -> list[Path]:
    """Return the files of which `load_directory` reads those that exist; sentence-transformers has some in folders of their own."""
    folders = (folder, *sorted(path for path in folder.iterdir() if path.is_dir())) if folder.is_dir() else ()
    return [part / name for part in folders for name in (MODULES, "config.json", SAFETENSORS, PICKLE)]


def _loaded(folder: Path) -> Checkpoint:
    bert, embedding = transformer_folder(folder), sentence_embedding(folder)
    config, stored = _config(bert / "config.json"), {**stored_parameters(bert), **dense_parameters(folder)}
    heads = heads_of(stored, config)
    require_head(heads, config)
    switches = {"heads": heads, "pooler": "bert.pooler.dense.weight" in stored, "num_labels": _labels(stored, config, heads)}
    architecture = Architecture.from_config({**config, "pooling": "", "dense": [], "normalize": False}, **switches, **embedding)
    copies = {n: of for n, of in COPIES.items() if n in stored and of in stored} if "masked_lm" in heads else {}
    shapes, unread = parameter_shapes(architecture), {*BUFFERS, *copies}
    if architecture.has_relative_positions:
        unread.add(ABSOLUTE_POSITIONS)  # Hugging Face stores the table but does not use it
    check_parameters(shapes, {n: s.shape for n, s in stored.items() if n not in unread})
    untied = [f"{n} differs from {of}" for n, of in copies.items() if not np.array_equal(stored[n].array, stored[of].array)]
    if untied:
        raise CheckpointError(f"the decoder is not tied, and the equations tie it: {', '.join(untied)}")
    return Checkpoint(architecture, LazyWeights(shapes, lambda name: stored[name].array))


def _labels(stored: Mapping[str, Stored], config: Mapping[str, Any], heads: Sequence[str]) -> int:
    """Return the number of labels: the rows of the classifier, or 2 without a classifier or for multiple choice.

    Raises:
        CheckpointError: the configuration has another number of labels.
    """
    if "classifier.weight" not in stored or "multiple_choice" in heads:
        return 2
    rows = stored["classifier.weight"].shape[0]
    labels = config.get("num_labels") or len(config.get("id2label") or ()) or rows
    if labels != rows:
        raise CheckpointError(
            f"config.json has {labels!r:.40} labels (num_labels, id2label), and classifier.weight has {rows} rows"
        )
    return rows


def _config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist; a checkpoint is a directory with config.json and {SAFETENSORS}")
    with reading(file, "a configuration", CheckpointError):
        config = require_bert(read_json(file, dict[str, Any]), file)
    required = [f.name for f in fields(Architecture) if f.default is MISSING]
    missing = [name for name in required if name not in config]
    if missing:
        raise CheckpointError(f"{file} lacks {', '.join(missing)}")
    return config
