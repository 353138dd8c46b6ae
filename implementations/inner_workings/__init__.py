"""*Bert Inner Workings*: Hugging Face's BertForSequenceClassification, rewritten tensor by tensor.

Read the modules in this order: `embeddings`, `attention`, `encoder`, `model`, `heads`. Each component uses the
earlier ones and can be used on its own. Components and parameters have Hugging Face's names, so its state dict loads unchanged.
Every tensor reports its shape to a listener when it is computed:

    with shape_log(print):
        BertLayer(BertConfig())(torch.rand(2, 9, 768))

`candidate` registers the network.
"""

from .attention import BertAttention, BertSelfAttention, BertSelfOutput
from .candidate import inner_workings
from .config import BertConfig
from .embeddings import BertEmbeddings
from .encoder import BertEncoder, BertIntermediate, BertLayer, BertOutput, BertPooler
from .heads import BertForSequenceClassification, BertForTokens, Classified, TokenLogits, classification_loss
from .model import BertModel, BertModelOutput, new_cache
from .shapes import reported, shape_log

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
