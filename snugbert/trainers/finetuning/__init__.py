"""What the fine-tuning commands share: their arguments, their Trainer, one run or a sweep of them, and the report."""
