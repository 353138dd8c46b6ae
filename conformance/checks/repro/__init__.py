"""Files that reproduce a failure: its inputs and activations and a script that shows it."""
