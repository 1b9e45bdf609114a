"""Whether a configuration fits a store, checked before anything is written, made or published: no lock is taken."""

import structlog

from schemas.config import StreamConfig
from schemas.store import LaneHeader
from stream.kafka.client import NoBrokerError
from stream.kafka.takeover import topic_bounds
from stream.sink.snapshot_sink import log_header
from stream.store.files.records import read_record, require_agreement
from stream.store.lane import layout as lane_layout
from stream.store.lane.reader import manifest_taus
from stream.store.lane.state import lane_header
from stream.store.log import layout as log_layout
from stream.store.log.commits import numbers, require_header

_log = structlog.get_logger()


def require_same(config: StreamConfig) -> None:
    """Check that a store, if there is one, is that of the configuration.

    Raises:
        MismatchError: The log or a lane was made for something else.
        PartitionError: A lane's algorithm or parameters.
        CorruptError, FormatVersionError: A header is damaged, or of another release.
    """
    wanted = log_header(config)
    root = log_layout.log_folder(config.store)
    path = root / log_layout.HEADER
    if path.exists() and any(True for _ in numbers(root)):
        require_header(root, wanted)
    for lane in config.lanes:
        header = lane_header(lane, wanted)
        root = lane_layout.lane_folder(config.store, lane.name)
        path = root / lane_layout.HEADER
        if path.exists() and manifest_taus(root):
            found = read_record(path, LaneHeader)
            require_agreement(path, found, header, "a lane", changeable={"base_every"})


def require_fit(config: StreamConfig) -> None:
    """Check now what would otherwise fail when the other job is gone and this one is needed.

    Raises:
        Failure: Kafka refuses, or a topic doesn't exist. Brokers that don't answer are only logged.
        StoreError, PartitionError: As ``require_same``.
    """
    require_same(config)
    try:
        topic_bounds(config.kafka)
    except NoBrokerError as error:
        _log.warning("no broker answers so far", graph=config.graph, error=str(error))
