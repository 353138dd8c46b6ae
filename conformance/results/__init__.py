"""The results of cases: values, and how they are written, read and merged."""
