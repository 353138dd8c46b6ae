"""Files that reproduce a failure: its inputs and activations, a script that shows it, and a patch that adds it to a test."""
