"""Mistakes written before their results were seen, by an author who had not read the catalogue of faults."""
