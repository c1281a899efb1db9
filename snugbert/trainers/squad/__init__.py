"""`snugbert squad`: answers questions about a text."""
