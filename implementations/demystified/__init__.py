"""*Demystifying BERT*, made right: the tutorial's network, its data and its training.

    python -m implementations.demystified.pretrain

reads dialogues, trains WordPiece, and pre-trains. In the order of that: `dialogues` reads a corpus, `wordpiece` trains the
vocabulary, `corpus` keeps the token ids on disk, `examples` makes of them what the network is trained on, `network` is the network,
`trainer` a step of training, `checkpoints` what is kept of it, `pretrain` the whole, `page` its curves. `candidate` is how the
suite sees them. What the tutorial gets wrong stands in `demystified_as_written`.
"""

from implementations.demystified.candidate import demystified

__all__ = ["demystified"]
