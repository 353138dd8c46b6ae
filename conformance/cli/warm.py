"""What a worker needs whatever it runs: imported once, by the server from which workers are forked. No candidate is among it."""

from contextlib import suppress

import conformance.checks.judged
import conformance.checks.run
import conformance.checks.searched
import conformance.cli.session  # noqa: F401

with suppress(ImportError):
    import transformers.models.bert.modeling_bert  # noqa: F401  # the slowest import, of the reference and of most candidates
