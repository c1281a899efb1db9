"""What is trained: one base for all trainers, with checkpoints, stopping, and the settings of a run."""
