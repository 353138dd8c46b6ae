"""A run: verdicts, mistakes, the network from input to output, where errors sit."""
