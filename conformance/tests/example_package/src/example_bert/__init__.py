"""An example of a user's own package."""
