"""False alarms of the laws over correct candidates, and what the suite costs beside the candidate."""
