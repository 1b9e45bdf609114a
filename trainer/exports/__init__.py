"""What training leaves for others: embeddings, predictions, and a model to ask."""
