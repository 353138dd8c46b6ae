"""Texts into batches, by the tokenizer that lies beside a checkpoint."""

from collections.abc import Sequence
from pathlib import Path

from conformance.batch import Batch
from conformance.errors import CheckpointError


def tokenized(folder: Path, texts: Sequence[tuple[str, str | None]]) -> Batch:
    """Texts, or pairs of texts, as one right-padded batch, by `tokenizer.json` or else `vocab.txt` in `folder`.

    Raises:
        CheckpointError: there is neither.
    """
    from tokenizers import BertWordPieceTokenizer, Tokenizer

    if (folder / "tokenizer.json").is_file():
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_truncation()
    elif (folder / "vocab.txt").is_file():
        tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"))
    else:
        raise CheckpointError(f"{folder} has neither tokenizer.json nor vocab.txt; give token ids with --batch instead of --text")
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch([text if pair is None else (text, pair) for text, pair in texts])
    return Batch.of(
        {
            "input_ids": [e.ids for e in encoded],
            "token_type_ids": [e.type_ids for e in encoded],
            "attention_mask": [e.attention_mask for e in encoded],
        }
    )
