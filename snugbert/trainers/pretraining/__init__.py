"""`snugbert pretrain`: sentence pairs, masks, batches, and the trainer."""
