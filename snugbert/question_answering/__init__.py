"""Extractive question answering on long texts: windows, answers, and `QuestionAnswerer`."""
