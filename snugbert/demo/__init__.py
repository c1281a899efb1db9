"""`snugbert demo`: a web page to try a checkpoint. Only `page.py` needs Gradio."""

from snugbert.demo.command import main

__all__ = ["main"]
