"""Message passing on any device: compressed graphs, mean aggregation, GraphSAGE layers."""
