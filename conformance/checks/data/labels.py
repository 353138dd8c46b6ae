"""Each label is the token of the corpus at its position, and each token without a label is unchanged.

The loss is a mean over the positions with a label. A label of another position trains the network on a different task; a token that
is changed and has no label is noise; a label at [CLS], [SEP] or padding trains the network to predict a token that it need not
predict.
"""

from collections.abc import Iterator

import numpy as np

from conformance.checks.data.data_check import DataCheck, Epochs, wrong_rows


def _violations(epochs: Epochs, alpha: float) -> Iterator[str]:
    e = epochs.first
    columns, (first, last) = np.arange(e.ids.shape[1]), (end[:, None] for end in e.ends)
    special = e.separators | (columns <= first) | (columns > last)
    yield from wrong_rows(e, e.chosen & special, "a special token or padding has a label")
    yield from wrong_rows(e, e.chosen & e.known & (e.labels != e.originals), "a label is not the token that the corpus has there")
    yield from wrong_rows(e, ~e.chosen & e.known & (e.ids != e.originals), "a token is changed and has no label")


labels = DataCheck(_violations)
