"""*Demystifying BERT*, made right: the tutorial's network, its data and its training.

    python -m implementations.demystified.pretrain

reads dialogues, trains WordPiece, and pre-trains. In the order of that: `dialogues` reads a folder, with `cornell` and `parquet`,
into `conversations`; `wordpiece` trains the vocabulary; `corpus` keeps the token ids on disk; `preparation` does all of this once;
`examples` makes of them what the network is trained on; `network` is the network, `trainer` a step of training, `scores` how well
it does, `curve` the scores of all steps, `page` the same to look at, `checkpoints` what is kept of the network. `run` is the whole,
by its `settings`, in a folder under `lock`; `pretrain` is the command. `candidate` is how the suite sees them. What the tutorial
gets wrong stands in `demystified_as_written`.
"""

from implementations.demystified.candidate import demystified

__all__ = ["demystified"]
