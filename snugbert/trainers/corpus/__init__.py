"""`snugbert prepare`: tokenizes text files or a dataset once, into memory-mapped files."""
