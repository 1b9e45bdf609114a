"""The training service: follows a store's lane and keeps a temporal graph model trained on it."""
