"""The prepared corpus: tokenized text on disk or in a bucket."""
