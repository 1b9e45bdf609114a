"""How predictions are judged: ranking figures and the floors every model is shown beside."""
