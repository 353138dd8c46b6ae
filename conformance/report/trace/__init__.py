"""Report of a trace: tokens, statistics of every step, diagrams of the modules, attention and predictions."""
