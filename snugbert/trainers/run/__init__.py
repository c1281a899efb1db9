"""A run: its folder, checkpoints, continuation, stopping, processes and log."""
