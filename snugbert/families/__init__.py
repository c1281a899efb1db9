"""Opens and converts models of the BERT family."""
