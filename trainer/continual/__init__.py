"""The daemon's loop: follow a lane, predict, learn, forget, write checkpoints and scores."""
