"""What a worker needs whatever it runs: imported once, by the server from which workers are forked. No candidate is among it."""

import warnings
from contextlib import suppress

import conformance.isolation.serve  # noqa: F401
from conformance.isolation.confinement import adopt_orphans

adopt_orphans()
# Of those that it has adopted.
warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")

with suppress(ImportError):
    import transformers.models.bert.modeling_bert  # noqa: F401  # the slowest import, of the reference and of most candidates
