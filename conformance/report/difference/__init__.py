"""The difference of two traces: how large it is, and where it begins."""
