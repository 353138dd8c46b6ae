"""What changed between two runs, and how it is reported."""
