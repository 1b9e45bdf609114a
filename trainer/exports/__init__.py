"""Results of training for other programs: embeddings, predictions, and a trained model for questions."""
