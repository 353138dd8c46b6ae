"""Settings of the project's own tests: offline, one Hypothesis profile for CI."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

try:
    from hypothesis import settings
except ModuleNotFoundError:  # the shipped suite, run from an environment inside the checkout, does without
    pass
else:
    settings.register_profile("ci", derandomize=True, deadline=None, database=None)
    settings.register_profile("local", deadline=None)
    settings.load_profile("ci" if os.environ.get("CI") else "local")
