"""Cross-entropy of logits and labels, a loss for each row."""
