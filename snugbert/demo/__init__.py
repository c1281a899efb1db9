"""`snugbert demo`: a web page to try a checkpoint. Only `page.py` needs Gradio."""
