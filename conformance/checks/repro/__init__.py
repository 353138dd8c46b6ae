"""What a failure leaves in the hand: its inputs and activations in a file, a script that shows it, a patch that keeps it."""
