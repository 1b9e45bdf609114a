"""Features that are made of a message's values: logarithms, and categories as ones and zeros."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.config import Topic
from freshet_graph.schemas.fields import FeatureSource, HashFeature, LogFeature
from freshet_graph.stream.decode.reading import DecodedRows


@dataclass(frozen=True)
class MadeFeatures:
    """The listed features of a topic, some of which are made."""

    sources: Sequence[FeatureSource]

    @classmethod
    def of(cls, topic: Topic) -> "MadeFeatures":
        """Those of a topic, empty if all are taken as they are."""
        listed = topic.fields.features if topic.fields is not None else None
        is_made = isinstance(listed, list) and any(not isinstance(one, str) for one in listed)
        return cls(listed if isinstance(listed, list) and is_made else ())

    def made(self, rows: DecodedRows) -> DecodedRows:
        """Rows with the features that come of a value per source: a number, or the bucket of a category."""
        return replace(rows, draft=replace(rows.draft, batch=self.made_of(rows.draft.batch)))

    def made_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same of a batch whose column ``features`` has those values."""
        features = batch["features"]
        if not self.sources or features.null_count == len(features):
            return batch
        given = ~np.asarray(features.is_null().to_numpy(zero_copy_only=False))
        flat = features.filter(pa.array(given)).flatten()
        shape = int(given.sum()), len(self.sources)
        values = flat.fill_null(0).to_numpy(zero_copy_only=False).reshape(shape)
        missing = flat.is_null().to_numpy(zero_copy_only=False).reshape(shape)
        columns, masks = [], []
        for part, source in enumerate(self.sources):
            column, width = values[:, [part]], 1
            if isinstance(source, LogFeature):
                column = np.copysign(np.log1p(np.abs(column)), column)
            elif isinstance(source, HashFeature):
                width = source.width
                column = np.float32(column.astype(np.int64) == np.arange(width))
            columns.append(column)
            masks.append(np.repeat(missing[:, [part]], width, axis=1))
        made, mask = np.concatenate(columns, axis=1).astype(np.float32), np.concatenate(masks, axis=1)
        ends = np.concatenate(([0], np.cumsum(given))).astype(np.int32) * np.int32(made.shape[1])
        array = pa.ListArray.from_arrays(
            ends, pa.array(made.ravel(), mask=mask.ravel()), mask=pa.array(~given)
        )
        place = batch.schema.get_field_index("features")
        return batch.set_column(place, batch.schema.field(place), array)
