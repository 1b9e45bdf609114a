#!/usr/bin/env python3
"""Kafka's own command-line tools, from the jars or the image that the development broker runs from.

    python deploy/kafka/tool.py console-producer --bootstrap-server HOST:PORT --topic edges < events.jsonl
    python deploy/kafka/tool.py consumer-groups --bootstrap-server HOST:PORT --describe --group freshet-demo

The options are those of the tool itself. Needs a broker that was started here once, which fetches the jars, or Docker.
"""

import os
import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
JARS = HERE / "target" / "jars"

TOOLS = {
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
}


def main() -> int:
    """Become the tool; 1 and a sentence where it can't be run."""
    name, arguments = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if name not in TOOLS:
        print(f"usage: tool.py {{{'|'.join(TOOLS)}}} OPTIONS; found {name!r}", file=sys.stderr)
        return 2
    if (JARS / "resolved.pom").exists() and shutil.which("java"):
        logs = f"-Dlog4j2.configurationFile={HERE / 'log4j2.yaml'}"
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", logs, "-cp", f"{JARS}/*", TOOLS[name]]
    elif shutil.which("docker"):
        version = re.search(r"<kafka.version>(.+)</kafka.version>", (HERE / "pom.xml").read_text())
        assert version is not None
        image = f"apache/kafka:{version.group(1)}"
        command = ["docker", "run", "--rm", "-i", "--network=host", image, f"/opt/kafka/bin/kafka-{name}.sh"]
    else:
        print("error: no jars here; start a broker once (make kafka), or install Docker", file=sys.stderr)
        return 1
    os.execvp(command[0], [*command, *arguments])


if __name__ == "__main__":
    sys.exit(main())
