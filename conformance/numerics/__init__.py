"""Floating-point formats and the arithmetic models built on them."""
