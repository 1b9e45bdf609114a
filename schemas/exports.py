"""Records of a trainer's exports; ``docs/exports.md`` defines them and their files."""

from typing import Literal

from pydantic import ConfigDict, Field

from freshet_graph.schemas.store import Count, FileRef, Int64, Record

ExportKind = Literal["embeddings", "scores"]


class ExportCommit(Record):
    """``exports/<name>/commits/<number>.json``: the export after one snapshot."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    number: Count = Field(description="0 for the first export under this name; never used again.")
    lane: str
    tau: Int64
    sequence: Count = Field(description="Number of the snapshot in its lane.")
    after: Int64 = Field(
        description="Number of the snapshot up to which embeddings had been exported before; -1: none."
    )
    model: str = Field(description="The model's name.")
    model_version: str = Field(description="The weights that the embeddings were made with: name and xxh64.")
    scores_version: str = Field(description="The weights that the scores were made with: those before.")
    time_us: Int64 = Field(description="Event time of the newest event that the embeddings have seen.")
    embeddings: FileRef | None = None
    scores: FileRef | None = None
    num_embeddings: Count = 0
    num_scores: Count = 0

    def file(self, kind: ExportKind) -> FileRef | None:
        """The file of a kind; None if it was not exported."""
        return self.embeddings if kind == "embeddings" else self.scores


class Published(Record):
    """``exports/<name>/published/<topic>.json``: how far a topic has the exports."""

    topic: str
    kind: ExportKind
    next: Count = Field(description="Number of the first export that is not known to be in the topic.")
