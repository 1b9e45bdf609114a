"""Operations and layers of message passing, attention and recurrence, on any device."""
