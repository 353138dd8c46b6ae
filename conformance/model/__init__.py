"""What a BERT and its inputs are: architecture, activations, batches, checkpoints."""
