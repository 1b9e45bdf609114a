"""A stream job without Kafka, to be killed: reads scripted topic partitions of events and of labels from where the log stands."""

from pathlib import Path
from random import Random

from log_events import SECOND, Clock, Message, event, label_poll, poll, stream_config

from freshet_graph.schemas.config import Topic
from freshet_graph.stream.sink import SnapshotSink, log_header
from freshet_graph.stream.store.crash import arm
from freshet_graph.stream.store.log.writer import LogWriter

KEYS = [("a", 0), ("a", 1), ("b", 0)]
LABELS, NUM_LABELS = ("labels", 0), 280


def messages(key: tuple[str, int], count: int = 120) -> list[Message]:
    """The partition's content: in order of time, some messages refused, some offsets missing."""
    random = Random(f"{key}")
    content: list[Message] = []
    offset, now = 3, random.randrange(SECOND)
    for _ in range(count):
        now += random.randrange(SECOND // 4)
        rows = [
            event(random.randrange(40), random.randrange(40), now, label=random.choice([None, 1]))
            for _ in range(random.choice([1, 2, 5]))
        ]
        content.append((offset, None if random.random() < 0.1 else rows))
        offset += random.choice([1, 1, 3])
    return content


def seal_everything(store: Path, crash_at: str) -> None:
    """Run to the end, or to a crash point."""
    arm(crash_at)
    config = stream_config(str(store), commit_every_s=2.0)
    config.kafka.topics.append(Topic(name=LABELS[0], kind="labels"))
    clock = Clock()
    with LogWriter.open(config.store, log_header(config)) as writer:
        sink = SnapshotSink(writer, config, clock=clock)
        sink.assign([*KEYS, LABELS])
        contents = {key: messages(key) for key in KEYS}
        while True:
            idle = True
            for key, content in contents.items():
                start = sink.next_offset(key) or 0
                part = [message for message in content if message[0] >= start][:3]
                if part:
                    idle = False
                    end = part[-1][0] + 1
                    sink.offer(poll(*key, part, first=start, end=end, high_watermark=content[-1][0] + 1))
            start = sink.next_offset(LABELS) or 0
            end = min(start + 7, NUM_LABELS)
            labels = ((offset, f"e{offset}", -offset * SECOND) for offset in range(start, end))
            if start < end:
                sink.offer(label_poll(*LABELS, labels, first=start, end=end))
            clock.now += 1.0
            sink.advance()
            if idle:
                sink.seal_all()
                return
