"""`snugbert glue`: classifies texts and text pairs, including the GLUE benchmark."""
