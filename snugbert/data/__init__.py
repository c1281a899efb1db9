"""Reading data: text, tables, prepared corpora, packed batches."""
