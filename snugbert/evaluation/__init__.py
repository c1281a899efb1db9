"""`snugbert evaluate`: scores masked language models of transformers without fine-tuning."""
