"""`snugbert demo`: a page to try a checkpoint on. Gradio is needed by `page.py` alone."""

from snugbert.demo.command import main

__all__ = ["main"]
