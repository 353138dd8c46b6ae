"""Searching for a batch on which something does not hold: what is drawn, how it is run, and how the smallest is found."""
