"""BERT models and their inputs: architectures, activations, batches and checkpoints."""
