"""Correct candidates under every instruction set and setting of this machine that can be chosen: no false alarm is expected."""
