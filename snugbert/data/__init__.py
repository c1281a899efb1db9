"""What is read: text, tables, the prepared corpus, packed batches."""
