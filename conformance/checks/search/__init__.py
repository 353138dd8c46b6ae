"""The search for a batch on which a property fails: drawing batches, running them, and reducing a failure to the smallest one."""
