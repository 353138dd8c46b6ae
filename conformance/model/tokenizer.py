"""Conversion of texts to batches with the tokenizer stored next to a checkpoint."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from conformance.errors import CheckpointError
from conformance.model.batch import Batch
from conformance.model.files import read_json, read_text, reading, require_regular
from conformance.model.sentence_transformers import longest_text, transformer_folder


def tokenized(folder: Path, texts: Sequence[tuple[str, str | None]]) -> Batch:
    """Return texts, or pairs of texts, as one right-padded batch, using `tokenizer.json` or otherwise `vocab.txt` in `folder`.

    In a directory of sentence-transformers, texts are truncated to its `max_seq_length`.

    Raises:
        CheckpointError: neither file exists, or the file cannot be read.
    """
    with reading(folder, "a tokenizer", CheckpointError):
        tokenizer = _tokenizer(folder)
        if tokenizer is None:
            raise CheckpointError(
                f"{folder} has neither tokenizer.json nor vocab.txt; give token ids with --batch instead of --text"
            )
        tokenizer.enable_padding()
        longest = longest_text(folder)
        if longest is not None:
            tokenizer.enable_truncation(longest)
        encoded = tokenizer.encode_batch([text if pair is None else (text, pair) for text, pair in texts])
    return Batch.of(
        {
            "input_ids": [e.ids for e in encoded],
            "token_type_ids": [e.type_ids for e in encoded],
            "attention_mask": [e.attention_mask for e in encoded],
        }
    )


def words(folder: Path | None, batch: Batch) -> list[list[str]] | None:
    """Return the token of each id of a batch, by the tokenizer in `folder`; `[id]` for an id that the tokenizer does not have.

    Returns None if there is no tokenizer that can be read.
    """
    try:
        with reading(folder or "", "a tokenizer", CheckpointError):
            tokenizer = _tokenizer(folder) if folder else None
            return tokenizer and [[tokenizer.id_to_token(int(i)) or f"[{i}]" for i in row] for row in batch.input_ids]
    except CheckpointError:  # the report then shows ids
        return None


class _Settings(msgspec.Struct):
    """What `tokenizer_config.json` says, with the defaults of Hugging Face's `BertTokenizer`."""

    do_lower_case: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True


def _tokenizer(folder: Path) -> Any:
    """Return the tokenizer of `tokenizer.json`, or of `vocab.txt` and `tokenizer_config.json`; None if neither exists."""
    from tokenizers import BertWordPieceTokenizer, Tokenizer

    folder = transformer_folder(folder)
    if (folder / "tokenizer.json").is_file():
        tokenizer = Tokenizer.from_str(read_text(folder / "tokenizer.json"))
        tokenizer.no_truncation()
        return tokenizer
    if not (folder / "vocab.txt").is_file():
        return None
    require_regular(folder / "vocab.txt")
    file = folder / "tokenizer_config.json"
    settings = read_json(file, _Settings) if file.is_file() else _Settings()
    return BertWordPieceTokenizer(
        str(folder / "vocab.txt"),
        lowercase=settings.do_lower_case,
        strip_accents=settings.strip_accents,
        handle_chinese_chars=settings.tokenize_chinese_chars,
    )
