"""The frozen record: what the suite says of many candidates, to see what a change moves."""
