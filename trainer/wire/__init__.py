"""How tensors cross ranks: what joins them, what it costs, and exchanges that gradients take back."""
