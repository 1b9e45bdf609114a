"""Labels that come after their events: what waits for them, what they say of nodes, and a classifier that learns from them."""
