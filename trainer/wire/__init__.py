"""Tensors between ranks: the link, its costs, and differentiable exchanges."""
