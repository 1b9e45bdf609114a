"""Tensors between ranks: the link, its costs, and exchanges that gradients take back."""
