"""A WordPiece vocabulary to read drawn texts with: small, and with a piece for most of what they are made of.

Every printable ASCII character begins a word, letters and digits also go on with one, but for `q` and `7`, so that words come up
that cannot be pieced together. Accented letters, as one character and as two, and a few of other scripts are there.
"""

from conformance.model.pretraining import SPECIAL

_ASCII = [chr(c) for c in range(0x21, 0x7F)]
_INNER = [c for c in _ASCII if c.isalnum() and c not in "q7Q"]
_ACCENTED = list("àâäçèéêëíîïñóôöùúûüÿßÅÉÖÜİıŒœšžΑΣασς")
_OTHER = list("一丁中国文字語漢日本カタひらがな한국어абвгдж“”—…¿¡€ﬁ")
_COMBINING = ["\u0301", "\u0308", "\u0327", "\u0307"]
_WORDS = ["the", "cat", "cafe", "café", "naive", "naïve", "love", "hate", "play", "un", "able", "ing", "ed", "Istanbul", "strasse"]

VOCABULARY: tuple[str, ...] = tuple(
    dict.fromkeys(
        [
            *SPECIAL,
            *_ASCII,
            *(f"##{c}" for c in _INNER),
            *_ACCENTED,
            *(f"##{c}" for c in _ACCENTED),
            *_OTHER,
            *(f"##{c}" for c in _OTHER),
            *_COMBINING,
            *(f"##{c}" for c in _COMBINING),
            *_WORDS,
            *(f"##{w}" for w in _WORDS),
        ]
    )
)
