"""From documents to a pretrained model: documents -> sentence_pairs -> masking -> collator -> trainer."""
