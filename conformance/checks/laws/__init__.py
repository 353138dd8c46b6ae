"""Laws: what holds of any BERT, whatever its weights, and needs no reference to be seen: one theme a file."""
