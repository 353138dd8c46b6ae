"""Scoring of names: how well a tensor's name matches a parameter, by words that are common in the literature and in code."""

import re

from conformance.model.activation import Activation

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")

# Words in the names of an activation's parameters, by the end of the activation's name.
_OF_ACTIVATION = {
    "word_embeddings": "word words token tokens tok vocab wte",
    "position_embeddings": "position positions pos wpe place places",
    "token_type_embeddings": "type types segment segments seg kind kinds",
    "embeddings.LayerNorm": "embedding embeddings embed emb norm ln",
    "self.query": "q query queries wq",
    "self.key": "k key keys wk",
    "self.value": "v value values wv",
    "attention.output.dense": "attention attn o out output proj dense wo merge",
    "attention.output.LayerNorm": "attention attn norm ln 1",
    "intermediate.dense": "intermediate mlp ff ffn up in inner fc expand 1",
    "output.dense": "output mlp ff ffn down out fc proj contract 2",
    "output.LayerNorm": "output mlp ff ffn final norm ln 2",
    "pooler.dense": "pool pooler pooled",
    "transform.dense": "mlm lm transform head predictions dense",
    "transform.LayerNorm": "mlm lm transform head predictions norm ln",
    "predictions.decoder": "mlm lm decoder logits output unembed head",
    "seq_relationship": "nsp next sentence relationship seq pair",
    "classifier": "classifier class classes cls labels",
}
_OF_ROLE = {"weight": "weight w gamma scale kernel g a table", "bias": "bias b beta offset shift"}


def words(name: str) -> list[str]:
    """Return the words of a name, in lower case, split at dots, underscores, capitals and digits.

    Example:
        >>> words("blocks.0.attnNorm_w1")
        ['blocks', '0', 'attn', 'norm', 'w', '1']
    """
    return [word.lower() for word in _WORD.findall(name)]


def score(name: str, row: Activation, role: str) -> int:
    """Return the number of words in a tensor's name that match the parameter of this activation and role."""
    known = next((w for end, w in sorted(_OF_ACTIVATION.items(), key=lambda item: -len(item[0])) if row.name.endswith(end)), "")
    return len(_said(name, known)) + len(_said(name, _OF_ROLE[role]))


def _said(name: str, known: str) -> set[str]:
    return set(words(name)) & set(known.split())
