"""Imports that every worker needs, done once in the fork server from which workers are forked. It imports no candidate."""

import warnings

import conformance.isolation.candidate_work  # noqa: F401
from conformance.isolation.confinement import adopt_orphans

adopt_orphans()
# The unexpected processes are the adopted orphans.
warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")
