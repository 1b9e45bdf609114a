"""Messages and files into canonical events, columnar, with every refusal named."""
