"""A small WordPiece vocabulary that covers most characters of the drawn texts.

Every printable ASCII character is a piece that begins a word. Letters and digits are also pieces that continue a word, except `q`,
`Q` and `7`, so that some words cannot be composed of pieces. The vocabulary includes accented letters, composed and decomposed, and
a few characters of other scripts.
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
