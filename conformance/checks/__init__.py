"""The checks that a candidate must pass, and the code that runs them."""
