"""*Bert Inner Workings*: Hugging Face's BertForSequenceClassification, rewritten tensor by tensor.

Read the modules in this order: `embeddings`, `attention`, `encoder`, `model`, `classification`, `tokens`. Each component uses the
earlier ones and can be used on its own. Components and parameters have Hugging Face's names, so its state dict loads unchanged.
Every tensor reports its shape to a listener when it is computed:

    with shape_log(print):
        BertLayer(BertConfig())(torch.rand(2, 9, 768))

`candidate` registers the network.
"""

from typing import Any
from warnings import warn

from implementations.inner_workings.attention import BertAttention, BertSelfAttention, BertSelfOutput
from implementations.inner_workings.candidate import inner_workings
from implementations.inner_workings.classification import BertForSequenceClassification, Classified, classification_loss
from implementations.inner_workings.config import BertConfig
from implementations.inner_workings.embeddings import BertEmbeddings
from implementations.inner_workings.encoder import BertEncoder, BertIntermediate, BertLayer, BertOutput, BertPooler
from implementations.inner_workings.model import BertModel, BertModelOutput, new_cache
from implementations.inner_workings.shapes import reported, shape_log
from implementations.inner_workings.tokens import BertForTokens, TokenLogits

__all__ = [
    "BertAttention",
    "BertConfig",
    "BertEmbeddings",
    "BertEncoder",
    "BertForSequenceClassification",
    "BertForTokens",
    "BertIntermediate",
    "BertLayer",
    "BertModel",
    "BertModelOutput",
    "BertOutput",
    "BertPooler",
    "BertSelfAttention",
    "BertSelfOutput",
    "Classified",
    "TokenLogits",
    "classification_loss",
    "inner_workings",
    "new_cache",
    "reported",
    "shape_log",
]


def __getattr__(name: str) -> Any:
    """Return `shape_log` for its former name `telling`, which is kept for one release."""
    if name == "telling":
        warn("implementations.inner_workings.telling is now shape_log", DeprecationWarning, stacklevel=2)
        return shape_log
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
