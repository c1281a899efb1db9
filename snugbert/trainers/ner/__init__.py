"""`snugbert ner`: tags named entities."""
