"""The examples as the suite asks for them: those of a whole epoch, as one batch."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from conformance import Batch, PretrainingConventions, PretrainingCorpus, PretrainingData
from implementations.demystified import corpus, wordpiece
from implementations.demystified.examples import Examples


def epoch_of(given: PretrainingCorpus, epoch: int) -> Iterator[Batch]:
    """Of a corpus, the pairs of an epoch."""
    tokenizer = wordpiece.of({piece: i for i, piece in enumerate(given.vocabulary)})
    with TemporaryDirectory() as folder:
        corpus.write(Path(folder), map(list, given.conversations), tokenizer)
        examples = Examples(corpus.read(Path(folder)), given.vocabulary, given.length, given.seed)
        yield examples.batch(epoch, len(examples.corpus.firsts))


pretraining_data = PretrainingData(epoch_of, PretrainingConventions(token_types=(1, 2), dynamic=True))
