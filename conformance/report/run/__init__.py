"""The page of a run: verdicts, mistakes, the network from input to output, where errors sit."""
