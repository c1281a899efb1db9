"""Fine-tuning of every task: arguments, the trainer, single runs and sweeps, teachers and students."""
