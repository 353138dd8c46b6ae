"""The task given to each tool: whether the candidate's run differs from the reference's, and where first."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from conformance.benchmarks.peers import own
from conformance.benchmarks.peers.debug_mode import debug_mode
from conformance.benchmarks.peers.hooks import assert_close, hooks
from conformance.benchmarks.peers.model_debugger import model_debugger
from conformance.benchmarks.peers.msprobe import msprobe
from conformance.benchmarks.peers.polygraphy import polygraphy
from conformance.benchmarks.peers.torch_lens import torch_lens
from conformance.benchmarks.subject import Subject

Compare = Callable[[Subject, Subject, Path], str | None]


@dataclass(frozen=True)
class Peer:
    """A tool.

    Attributes:
        name: name of the tool.
        distribution: package that contains it.
        compare: returns the first difference in the tool's own words, or None; may write to the folder.
        settings: settings, including tolerances and defaults.
        compares: whether the tool reports differences, instead of only capturing values.
    """

    name: str
    distribution: str
    compare: Compare
    settings: str
    compares: bool = True

    @property
    def version(self) -> str | None:
        """The installed version, or None."""
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            return None


PEERS: tuple[Peer, ...] = (
    Peer("bare hooks", "torch", hooks, "one pass; every module's output cloned and kept", compares=False),
    Peer("assert_close", "torch", assert_close, "two passes with bare hooks; default rtol 1.3e-6, atol 1e-5"),
    Peer(
        "DebugMode",
        "torch",
        debug_mode,
        "two passes; log_tensor_hashes and check_hash_mismatches, whose default hash is the L1 norm, compared exactly; "
        "record_nn_module=True, to place a mismatch",
    ),
    Peer(
        "model_addition_debugger_context",
        "transformers",
        model_debugger,
        "two passes; do_prune_layers=False as in its example; dumps only: the summaries are compared as texts, "
        "since it has no comparison",
    ),
    Peer("TorchLens", "torchlens", torch_lens, "two traces; debug.first_divergence, default rtol 1e-5, atol 1e-8"),
    Peer(
        "Polygraphy",
        "polygraphy",
        polygraphy,
        "two passes with bare hooks (its PytRunner needs CUDA); Comparator.compare_accuracy, default rtol 1e-5, atol 1e-5",
    ),
    Peer(
        "msprobe",
        "mindstudio-probe",
        msprobe,
        "two passes; default task statistics; level mix for L1, to place a difference; compare at its defaults",
    ),
    Peer("bert-conformance, full", "bert-conformance", own.full, "one pass, oracle instead of a reference; cache filled"),
    Peer("bert-conformance, screen", "bert-conformance", own.screen, "one pass, oracle instead of a reference; cache filled"),
)
