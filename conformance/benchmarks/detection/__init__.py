"""The mutation score: mistakes planted by hand in torch modules, correct variants, and the suite's verdicts on both."""
