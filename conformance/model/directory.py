"""Local Hugging Face directories as checkpoints: the configuration with its model type, the parameters, and the heads.

Heads are determined from the stored parameters, or from the config if their names are ambiguous.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np

from conformance.errors import CheckpointError, UnsupportedArchitectureError
from conformance.model.activations import parameter_shapes
from conformance.model.architecture import HEADS, Architecture
from conformance.model.checkpoint import (
    ABSOLUTE_POSITIONS,
    BUFFERS,
    COPIES,
    PICKLE,
    SAFETENSORS,
    Checkpoint,
    LazyWeights,
    Stored,
    check_parameters,
    stored_parameters,
)
from conformance.model.files import read_json, reading
from conformance.model.sentence_transformers import MODULES, dense_parameters, sentence_embedding, transformer_folder


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


_MARKS = {
    "masked_lm": "cls.predictions.transform.dense.weight",
    "next_sentence": "cls.seq_relationship.weight",
    "question_answering": "qa_outputs.weight",
}
_CLASSIFIERS = {
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "token_classification",
    "ForMultipleChoice": "multiple_choice",
}  # by the suffix of the class name in a config's `architectures`


def heads_of(stored: Collection[str], config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the heads whose parameters are stored, in the order of `HEADS`.

    A masked-LM decoder without a transform, and next-sentence logits without a pooler, are the plain heads.

    Raises:
        CheckpointError: there is a classifier whose type the config does not state, or RoBERTa's own sequence classifier.
    """
    if "classifier.out_proj.weight" in stored:
        raise CheckpointError(
            "the classifier of sequences of a RoBERTa has a dense layer of its own, and there are no equations for it; save the "
            "model's base_model, without the classifier"
        )
    found = {head for head, mark in _MARKS.items() if mark in stored}
    if "masked_lm" not in found and "cls.predictions.decoder.weight" in stored:
        found.add("plain_masked_lm")
    if "next_sentence" in found and "bert.pooler.dense.weight" not in stored:
        found = found - {"next_sentence"} | {"plain_next_sentence"}
    if "classifier.weight" in stored:
        found.add(_classifier(stored, config.get("architectures")))
    return tuple(head for head in HEADS if head in found)


def _classifier(stored: Collection[str], architectures: Any) -> str:
    """Return the head that `classifier.weight` belongs to, as stated by the config, or token classification if there is no pooler.

    Raises:
        CheckpointError: the head cannot be determined.
    """
    named = [head for name in architectures or () for end, head in _CLASSIFIERS.items() if str(name).endswith(end)]
    if len(named) == 1:
        return named[0]
    if not named and "bert.pooler.dense.weight" not in stored:
        return "token_classification"
    choices = " or ".join(f'["Bert{name}"]' for name in _CLASSIFIERS)
    raise CheckpointError(
        f"classifier.weight may be of sequences, of tokens or of choices, and config.json has architectures {architectures!r:.99}; "
        f'write into it "architectures": {choices}'
    )


ROBERTA = ("roberta", "xlm-roberta", "camembert")
"""Types that are a BERT with positions starting at `pad_token_id` + 1 and with a masked-LM head named `lm_head`."""

_OTHERS: Mapping[str, str] = {
    "data2vec-text": "a RoBERTa by another name; write model_type roberta into config.json and rename its parameters",
    "distilbert": "a BERT without token types and pooler, under other names; rename its parameters to BertModel's, with a table of "
    "token types that is 0 (dim is hidden_size, n_layers num_hidden_layers, n_heads num_attention_heads, hidden_dim "
    "intermediate_size)",
    "electra": "a BERT whose embeddings may have a width of their own and a projection; where embedding_size is hidden_size, "
    "rename `electra.` to `bert.`, leave out its heads, and write model_type bert",
}  # types that can be rewritten as a BERT


def require_bert(config: Mapping[str, Any], file: object) -> dict[str, Any]:
    """Return the entries of a `config.json` as those of a BERT; for a RoBERTa, `position_offset` is added.

    RoBERTa's first token has the position `pad_token_id` + 1 (Liu et al. 2019, as in fairseq). Its network numbers only the tokens
    that are not `<pad>`. This gives consecutive positions for a row that is padded on the right and has no `<pad>` elsewhere.

    Raises:
        UnsupportedArchitectureError: the model type is another one; the message says how to rewrite it as a BERT where that is
            possible.
    """
    kind = config.get("model_type", "bert")
    if kind in ROBERTA:
        padding = config.get("pad_token_id", 1)
        if not isinstance(padding, int):
            raise UnsupportedArchitectureError(f"{file} has pad_token_id {padding!r:.40}, by which a RoBERTa counts positions")
        return {**config, "position_offset": padding + 1}
    if kind != "bert":
        what = f": {_OTHERS[kind]}" if kind in _OTHERS else ""
        raise UnsupportedArchitectureError(
            f"{file} is of a {kind!r:.40}, and the equations are those of {', '.join(('bert', *ROBERTA))}{what}"
        )
    return dict(config)


def require_head(heads: tuple[str, ...], config: Mapping[str, Any]) -> None:
    """Raise `UnsupportedArchitectureError` if a RoBERTa's masked-LM head, which always uses GELU, differs from that of a BERT."""
    activation = config.get("hidden_act", "gelu")
    if config.get("model_type") in ROBERTA and "masked_lm" in heads and activation != "gelu":
        raise UnsupportedArchitectureError(
            f"hidden_act is {activation!r:.40}, and the masked-LM head of a RoBERTa has gelu; save its base_model without the head"
        )
