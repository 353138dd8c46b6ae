"""Floating-point formats, arithmetic models and the accuracy of library functions."""
