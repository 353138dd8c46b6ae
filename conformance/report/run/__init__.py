"""Report of a run: verdicts, mistakes, the network from input to output, and the locations of errors."""
