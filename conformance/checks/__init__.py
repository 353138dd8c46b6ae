"""What a candidate is put through: the checks, and how they become tests."""
