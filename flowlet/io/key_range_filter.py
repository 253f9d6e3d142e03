"""``KeyRangeFilter``: keeps the records whose keys belong to a subtask.

Side:       task.
Invariants: a record is kept by exactly one subtask of the consumer: by the one that a record writer would send it to.
Source:     Flink ``RecordFilter``, ``VirtualChannelSelector``.
"""

from typing import Any

import numpy as np

from flowlet.chain.key_extractor import KeyExtractor, create_key_extractor
from flowlet.graph.partitioner import KeyGroups
from flowlet.keys.key_columns import column_key_groups
from flowlet.records import Chunk


class KeyRangeFilter:
    """Filters chunks of one edge by key group; task thread only.

    Args:
        partitioner: of the edge.
        groups: the key groups of the subtask.
        subtask: for errors of the key selector.
    """

    def __init__(self, partitioner: KeyGroups, groups: range, subtask: int) -> None:
        keys = create_key_extractor(partitioner, subtask, 1)
        assert keys is not None, "an edge by key has a key selector"
        self._keys: KeyExtractor = keys
        self._max_parallelism = partitioner.max_parallelism
        self._groups = groups

    def __repr__(self) -> str:
        return f"<KeyRangeFilter of {self._groups} of {self._max_parallelism}>"

    def __call__(self, chunk: Chunk) -> Chunk:
        """The chunk's records with these keys, in order, as they are; possibly none.

        Raises:
            UserFunctionError: the key selector failed.
        """
        if not len(chunk):
            return chunk
        groups = column_key_groups(self._keys_of(chunk), self._max_parallelism)
        indices = np.flatnonzero((groups >= self._groups.start) & (groups < self._groups.stop))
        if len(indices) == len(chunk):
            return chunk
        if chunk.columns is not None:
            timestamps = chunk.timestamp_array
            return Chunk.of_columns(chunk.columns.take(indices), None if timestamps is None else timestamps[indices])
        places = indices.tolist()
        values, times, keys = chunk.values, chunk.timestamps, chunk.keys
        kept = Chunk([values[each] for each in places], None if times is None else [times[each] for each in places])
        kept.keys = None if keys is None else [keys[each] for each in places]
        kept.key_field = chunk.key_field
        return kept

    def _keys_of(self, chunk: Chunk) -> list[Any]:
        if chunk.keys is not None:
            return chunk.keys
        columns = chunk.columns
        if columns is not None and columns.key_position is not None:
            return columns.fields[columns.key_position].to_list()
        return self._keys.keys_of(chunk.values)
