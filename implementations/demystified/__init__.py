"""*Demystifying BERT* with its mistakes corrected: the tutorial's network, its data and its training.

    python -m conformance.implementations.demystified.pretrain

reads dialogues, trains WordPiece, and pre-trains the network. The modules in the order of these steps: `dialogues` reads a folder;
`wordpiece` trains the vocabulary; `corpus` holds the token ids; `examples` makes training examples; `network` is the network,
`trainer` a training step, and `curves` the scores of all steps and their plot. `run` combines all of this, given its `settings`, in
a folder; `pretrain` is the command. `candidate` registers the network with the suite. The tutorial's mistakes are in
`demystified_as_written`.
"""

from .candidate import demystified

__all__ = ["demystified"]
