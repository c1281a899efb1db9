"""What is done with the model: a vocabulary from text, pretraining, fine-tuning. One file or folder a job."""
