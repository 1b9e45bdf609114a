"""The memory updater: a node's next state from its state and the message (TGN equation 4)."""

from torch import nn

UPDATERS: dict[str, type[nn.GRUCell] | type[nn.RNNCell]] = {"gru": nn.GRUCell, "rnn": nn.RNNCell}
"""TGN and TIGE use a GRU; JODIE and DyRep a plain recurrent cell with tanh."""
