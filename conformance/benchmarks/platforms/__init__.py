"""Correct candidates under every available instruction set and setting of this machine; no false alarm is expected."""
