"""What a strategy learns from: the history of encounters, negatives, neighbour samples, remote rows."""
