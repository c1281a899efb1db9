"""What is shown: cards, tables, plots."""
