"""Event models: one memory architecture, of which every model is a preset."""
