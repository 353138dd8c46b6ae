"""Models of a residual: the candidate's array as a function of the expected value and of the step's inputs and parameters."""
