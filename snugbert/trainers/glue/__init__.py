"""`snugbert glue`: classify sentences and sentence pairs; the GLUE benchmark."""
