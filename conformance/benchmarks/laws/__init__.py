"""False alarms of the laws on correct candidates, and the suite's cost relative to the candidate."""
