"""`snugbert vocabulary`: learn a tokenizer from text, or add tokens to an existing one."""
