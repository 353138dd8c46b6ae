"""Correct backward passes that compute in unusual ways, wrong ones, and the verdicts of the check `gradients` on both."""
