"""What is asked: rows to features, logits to predictions, and their scores."""
