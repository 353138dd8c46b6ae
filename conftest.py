"""Settings of the project's own tests: offline, a separate cache, one Hypothesis profile, compiled code per instruction set."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

if "BERT_CONFORMANCE_CACHE" not in os.environ:  # workers inherit it
    kept = tempfile.TemporaryDirectory(prefix="bert-conformance-cache-")
    os.environ["BERT_CONFORMANCE_CACHE"] = kept.name

capability = os.environ.get("ATEN_CPU_CAPABILITY")
if capability:  # torch's compiler keeps no note of the limit in its cache, and code of two instruction sets together gives NaN
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"torchinductor-{capability}"))

try:
    from hypothesis import settings
except ModuleNotFoundError:  # the shipped suite, run from an environment inside the checkout, does without
    pass
else:
    settings.register_profile("ci", derandomize=True, deadline=None, database=None)
    settings.register_profile("local", deadline=None)
    settings.load_profile("ci" if os.environ.get("CI") else "local")
