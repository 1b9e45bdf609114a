"""Knowledge of a stream: views of a lane, the history of encounters, negatives, the temporal graph and its samples."""
