"""Fields of an event that columns of a file, or keys of a message, are probably meant for, by their names."""

import re
from collections.abc import Iterator, Mapping, Sequence

_WORDS = {
    "src": "src source from sender user user_id u follower payer buyer customer card head node1 a",
    "dst": "dst target destination to receiver recipient item item_id i followee payee seller merchant shop tail node2 b "
    "product page post video song url channel group",
    "t": "t ts time timestamp at created_at date datetime day when event_time ts_ms ms",
    "weight": "weight w amount value score",
    "label": "label state_label y",
    "event_id": "event_id id uuid",
}
"""Last keys of the paths that are proposed for each field, the likeliest first."""

_HUMP = re.compile(r"(?<=[a-z\d])(?=[A-Z])")


def proposed(paths: Sequence[str]) -> dict[str, str]:
    """A path or column for each field of an event, by their last keys; those that nothing is like are left out."""
    by_key = {name: path for path in reversed(paths) for name in _parts(path)}
    by_key |= {path.rpartition(".")[2].lower(): path for path in reversed(paths)}
    if "id" not in paths:  # of a card or a merchant
        by_key.pop("id", None)
    by_key |= {path.lower(): path for path in paths}
    fields: dict[str, str] = {}
    for name, words in _WORDS.items():
        path = next((by_key[word] for word in words.split() if word in by_key), None)
        if path is not None and path not in fields.values():
            fields[name] = path
    return fields


def _parts(path: str) -> Iterator[str]:
    """Words that a path is like beside its last key: ``card`` of card.id, card_id and cardId, ``from`` of from_user."""
    above, key = ([""] + [_HUMP.sub("_", part).lower() for part in path.split(".")])[-2:]
    side, _, rest = key.partition("_")
    if rest and side in ("from", "to", "src", "dst", "source", "target"):
        yield side
    whole = f"{above}_{key}".removeprefix("_")
    yield whole
    yield whole.removesuffix("_id")


def columns_flag(fields: Mapping[str, str]) -> str:
    """The value of ``--columns`` for these fields."""
    return ",".join(f"{name}={column}" for name, column in fields.items())
