"""The mutation score: mistakes planted by hand in torch modules, correct variants, and what the suite says of them."""
