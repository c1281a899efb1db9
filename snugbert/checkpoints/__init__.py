"""Opens, converts and shrinks checkpoints of every family."""
