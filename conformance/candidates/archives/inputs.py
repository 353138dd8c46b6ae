"""Which of a batch's arrays a program's inputs are, by their names."""

from collections.abc import Mapping, Sequence

from conformance.errors import CandidateError

ALIASES: Mapping[str, Sequence[str]] = {
    "input_ids": ("ids", "tokens", "token_ids", "input", "inputs"),
    "attention_mask": ("mask", "input_mask", "attn_mask"),
    "token_type_ids": ("token_types", "segment_ids", "segments", "segment_label", "segment_info", "type_ids"),
}


def fields_of(names: Sequence[str], given: Sequence[str] = ()) -> list[str]:
    """The batch's array for each input; `given` names them in order, where their own names do not say.

    Raises:
        CandidateError: a name that says nothing, or one array twice.
    """
    if given and len(given) != len(names):
        raise CandidateError(
            f"{len(given)} inputs are named, {', '.join(given)}, and the program takes {len(names)}: {', '.join(names)}"
        )
    found = [_field(name) for name in given or names]
    unknown = [name for name, field in zip(names, found, strict=True) if field is None]
    if unknown:
        raise CandidateError(f"what is its input {', '.join(unknown)}? Name all in order: inputs=({', '.join(map(repr, ALIASES))})")
    fields = [field for field in found if field is not None]
    if len(set(fields)) < len(fields) or "input_ids" not in fields:
        raise CandidateError(
            f"its inputs {', '.join(names)} are taken as {', '.join(fields)}; each is to be there once, the ids always"
        )
    return fields


def is_field(name: str) -> bool:
    """Whether a name says which array it is."""
    return _field(name) is not None


def _field(name: str) -> str | None:
    name = name.removeprefix("l_").split(".")[0].lower()
    return next((field for field, aliases in ALIASES.items() if name == field or name in aliases), None)
