"""The walk of an input through a network: tokens, every step in numbers, the modules drawn, attention, predictions."""
