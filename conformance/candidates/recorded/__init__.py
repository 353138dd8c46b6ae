"""Recorded traces: files of activations, computed by any library on any machine."""
