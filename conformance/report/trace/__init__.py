"""A trace: tokens, every step in numbers, the modules drawn, attention, predictions."""
