"""Networks that are correct or wrong in training mode only, and the verdicts of the check `training-mode` on them."""
