"""The results of cases: their values, and how they are written, read and merged."""
