"""Reports: model cards, tables and plots."""
