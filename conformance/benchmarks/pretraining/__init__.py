"""The pre-training pipeline of *Demystifying BERT*: the steps it loses when killed, and the time and memory a corpus costs."""
