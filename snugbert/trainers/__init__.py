"""The base of all trainers, with checkpoints, stopping, and the settings of a run."""
