"""Model, strategy, task and view of one rank, put together in one way for every caller."""
