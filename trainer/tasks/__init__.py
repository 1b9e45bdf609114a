"""Tasks, each with its examples, loss, baselines and figures."""
