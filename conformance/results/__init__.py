"""Values: what came of a case, and how it is written down, read and merged."""
