"""All kinds of splits, and what the JobManager finds them from: what messages can hold.

Side:   pure.
"""

from flowlet.splits.file_split import FileSet, FileSplit
from flowlet.splits.hybrid_split import HybridSplit, HybridSplits
from flowlet.splits.kafka_split import KafkaSplit, KafkaTopics
from flowlet.splits.number_split import NumberRange, NumberSplit
from flowlet.splits.planned_split import PlannedSplit, PlannedSplits

AnySplit = FileSplit | KafkaSplit | NumberSplit | PlannedSplit | HybridSplit
"""A part of a source, as a reader gets it."""

SplitSet = FileSet | KafkaTopics | NumberRange | PlannedSplits | HybridSplits
"""What a source reads; ``enumerators.py`` makes an enumerator of it."""
