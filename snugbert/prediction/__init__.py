"""`snugbert predict`: predicts every row of a file of any size, for every fine-tuned head and for embeddings."""
