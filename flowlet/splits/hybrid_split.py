"""``HybridSplit`` and ``HybridSplits``: the parts of several sources that are read one after the other.

Side:       pure.
Source:     Flink ``HybridSourceSplit``; ``SwitchSourceEvent``, which is the end of a source here, or the first split of
            the next one.
"""

import msgspec

from flowlet.splits.file_split import FileSet, FileSplit
from flowlet.splits.kafka_split import KafkaSplit, KafkaTopics
from flowlet.splits.number_split import NumberRange, NumberSplit
from flowlet.splits.planned_split import PlannedSplit, PlannedSplits

PlainSplit = FileSplit | KafkaSplit | NumberSplit | PlannedSplit
"""A part of a single source."""

PlainSplitSet = FileSet | KafkaTopics | NumberRange | PlannedSplits
"""What a single source reads."""


class HybridSplit(msgspec.Struct, frozen=True, tag="hybrid"):
    """A part of the source with number ``source``, from 0; ``split`` None: the reader gets nothing more of it."""

    source: int
    split: PlainSplit | None = None

    @property
    def split_id(self) -> str:
        """The number of the source, and the id of its split."""
        return f"{self.source}: {'end' if self.split is None else self.split.split_id}"

    @property
    def size_bytes(self) -> int:
        """That of the split."""
        return 0 if self.split is None else self.split.size_bytes


class HybridSplits(msgspec.Struct, frozen=True, tag="sequel"):
    """What the sources read, in their order; at least one."""

    sources: tuple[PlainSplitSet, ...]
