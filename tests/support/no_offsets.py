"""A group's offsets that nobody keeps."""

from schemas.store import Position


class NoOffsets:
    def __init__(self, *_: object) -> None:
        pass

    def committed(self, positions: list[Position]) -> None:
        pass

    def close(self) -> None:
        pass
