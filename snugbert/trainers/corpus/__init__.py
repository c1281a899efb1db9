"""`snugbert prepare`: text files or a dataset, tokenized once into memory-mapped files."""
