"""Fine-tuning, shared by glue, squad and ner: arguments, Trainer, single runs and sweeps, results, plots, cards."""
