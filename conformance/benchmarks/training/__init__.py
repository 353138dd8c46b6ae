"""Networks that are right and wrong in training mode alone, and what the check `training-mode` says of them."""
