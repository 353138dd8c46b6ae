"""What the pre-training pipeline of *Demystifying BERT* loses to kills, and what a corpus costs it in time and memory."""
