"""`snugbert squad`: answer questions from a text."""
