"""Other tools that analyse a run, given the same task as the suite and measured by the same code."""
