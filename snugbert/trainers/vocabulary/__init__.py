"""`snugbert vocabulary`: learns a tokenizer from text, or adds tokens to an existing one."""
