"""The daemon's loop: follow a lane, predict, learn, forget, write down, go on from there."""
