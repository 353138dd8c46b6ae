"""The command `similarity`: print which pairs of texts change rank between two systems."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from time import monotonic

import numpy as np

from conformance.candidates.lookup import PYTHON, READERS
from conformance.cli.output import emit
from conformance.cli.progress_display import ProgressDisplay, progress
from conformance.cli.trace import in_a_worker, traced
from conformance.diagnosis.outputs import resolved
from conformance.diagnosis.outputs_file import read
from conformance.errors import UsageError
from conformance.goldens.custom_golden import from_directory
from conformance.goldens.golden import Golden
from conformance.judge.cosines import EMBEDDING, RankChange, RankComparison, RoundedCosines, compare_ranks
from conformance.judge.threads import products_on_one_thread
from conformance.model.checkpoint import rounded_weights
from conformance.model.files import read_text, reading
from conformance.numerics.arithmetic import as_captured, hypotheses
from conformance.numerics.formats import Array, Format, format_named
from conformance.oracle import Network
from conformance.report.document import Document, Row

_WIDTH = 24  # maximum length of a text in the table
LEAST = 3  # number of texts: two texts form a single pair, which has no rank


def run(arguments: Namespace) -> int:
    """Run `similarity`; return 0 if rounding explains every change of order, else 1."""
    texts = _texts(arguments.texts)
    golden = from_directory(arguments.checkpoint, texts)
    if not golden.checkpoint.architecture.pooling:
        raise UsageError(
            f"{arguments.checkpoint} does not define a pooling; give a sentence-transformers directory, which defines it in "
            "modules.json and 1_Pooling/config.json"
        )
    names, dtypes = (arguments.a, arguments.b), _dtypes(arguments.dtype)
    with progress(len(names) + len(set(dtypes))) as shown, products_on_one_thread():
        given = []
        for side, dtype in zip(names, dtypes, strict=True):
            with _step(shown, f"{side}, {dtype}", "embedded"):
                given.append(_embeddings(side, golden, Namespace(device=arguments.device, dtype=dtype)))
            _require_directions(side, given[-1][0])
        rounded = {}
        for dtype in dict.fromkeys(dtypes):
            with _step(shown, f"rounding errors in {dtype} of the cosines of {len(texts)} texts", "computed"):
                rounded[dtype] = _rounded(golden, dtype, arguments.device)
        a, b = (
            rounded[dtype].with_printing(printing).judge(values) for dtype, (values, printing) in zip(dtypes, given, strict=True)
        )
        found = compare_ranks(a, b)
    emit(document(found, names, dtypes, texts), arguments)
    return 0 if found.explained else 1


@contextmanager
def _step(shown: ProgressDisplay, name: str, outcome: str) -> Iterator[None]:
    """Show one step of the command in the progress display."""
    started = monotonic()
    with shown.case(name):
        yield
        shown.ended(outcome, monotonic() - started)


def _texts(file: Path) -> list[str]:
    with reading(file, "texts", UsageError):
        texts = read_text(file).splitlines()
    if len(texts) < LEAST:
        raise UsageError(f"{file} has {len(texts)} texts (one per line), expected at least {LEAST}: fewer have no ranking of pairs")
    return texts


def _dtypes(given: Sequence[str] | None) -> tuple[str, str]:
    dtypes = given or ["float32"]
    if len(dtypes) > 2:
        raise UsageError(f"--dtype is given {len(dtypes)} times; expected once, or once for A and once for B")
    return dtypes[0], dtypes[-1]


def _rounded(golden: Golden, dtype: str, device: str) -> RoundedCosines:
    """Return the cosines with their rounding errors under the widest legal arithmetic, since that of the systems is unknown."""
    checkpoint, (batch,) = golden.checkpoint, golden.batches.values()
    network = Network(checkpoint.architecture, rounded_weights(checkpoint, dtype), batch)
    return RoundedCosines.of(network, as_captured(hypotheses(dtype, device))[-1])


def _embeddings(side: str, golden: Golden, place: Namespace) -> tuple[Array, Array]:
    """Return a side's embeddings, read from a file or computed, and the variance of printing or storing, (N, H) each."""
    if Path(side).is_file() and Path(side).suffix not in (*READERS, PYTHON):
        return _stored(Path(side), golden, format_named(place.dtype))
    (activations,) = traced(side, golden, place, in_a_worker).activations.values()
    if EMBEDDING not in activations:
        raise UsageError(
            f"{side} exposes no {EMBEDDING}; map its pooled output to this name in `activations`, or give a file of its embeddings"
        )
    return activations[EMBEDDING], np.zeros(activations[EMBEDDING].shape)


def _require_directions(side: str, embeddings: Array) -> None:
    """Raise `UsageError` if an embedding is zero, since its cosine is undefined."""
    empty = np.flatnonzero(~embeddings.any(1))
    if empty.size:
        raise UsageError(f"{side}: the embedding of text {empty[0] + 1} is zero, expected a nonzero vector")


def _stored(file: Path, golden: Golden, computed: Format) -> tuple[Array, Array]:
    """Return the embeddings in a file, and the variance of rounding each number to the printed digits or the stored format."""
    (batch,) = golden.batches.values()
    outputs = resolved(read(file).tables, golden.checkpoint.architecture, batch, computed)
    embeddings = [numbers for name, numbers in outputs.items() if name in ("embedding", EMBEDDING)]
    if len(embeddings) != 1 or np.isnan(embeddings[0].values).any():
        raise UsageError(f"{file} has {', '.join(outputs)}; expected one table of embeddings with a complete row for each text")
    return embeddings[0].values, embeddings[0].units ** 2 / 12.0


def document(found: RankComparison, names: Sequence[str], dtypes: Sequence[str], texts: Sequence[str]) -> Document:
    """Return the document: verdict, subject of the comparison, error of each system against the oracle, pairs that change rank."""
    changes = f"{len(found.changes)} of {found.pairs} pairs of texts change rank, in {found.discordant} changes of order"
    explained = "rounding explains all of them" if found.explained else f"rounding does not explain {found.unexplained} of these"
    verdict = f"{changes}; {explained}" if found.changes else "no pair of texts changes rank"
    data = {"systems": names, "dtypes": dtypes, "texts": texts, **asdict(found)}
    view = data | {"rows": [_row(change, texts) for change in found.changes]}
    return Document("similarity", view, verdict, "good" if found.explained else "bad", data)


def _row(change: RankChange, texts: Sequence[str]) -> Row:
    short = (texts[i] if len(texts[i]) <= _WIDTH else f"{texts[i][: _WIDTH - 1]}…" for i in change.texts)
    pair = " / ".join(f"{i + 1} {text}" for i, text in zip(change.texts, short, strict=True))
    orders = (str(change.discordant), str(change.unexplained), f"{change.excess:.3g}")
    return pair, *(f"{c:.6f}" for c in change.cosines), *orders, *map(str, change.ranks)
