"""`snugbert ner`: tag named entities."""
