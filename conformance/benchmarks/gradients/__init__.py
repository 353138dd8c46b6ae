"""Correct backward passes that compute unusually, wrong ones, and what the check `gradients` says of them."""
