"""Floating-point formats, arithmetic models and the error bounds of library functions."""
