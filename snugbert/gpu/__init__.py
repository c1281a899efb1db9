"""What a GPU needs: CUDA graphs, compilation, and batches of few sizes."""
