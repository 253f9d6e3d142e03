"""The kinds of enumerators: what the JobManager makes of the description of a source.

Side: shared.
"""

from typing import assert_never

from flowlet.splits.enumerator import SplitEnumerator
from flowlet.splits.file_enumerator import FileSplitEnumerator
from flowlet.splits.file_split import FileSet
from flowlet.splits.hybrid_enumerator import HybridSplitEnumerator
from flowlet.splits.hybrid_split import HybridSplits
from flowlet.splits.kafka_enumerator import KafkaSplitEnumerator
from flowlet.splits.kafka_split import KafkaTopics
from flowlet.splits.number_enumerator import NumberSplitEnumerator
from flowlet.splits.number_split import NumberRange
from flowlet.splits.planned_split import PlannedSplitEnumerator, PlannedSplits
from flowlet.splits.split_kinds import SplitSet


def enumerator_for(split_set: SplitSet) -> SplitEnumerator:
    """A new enumerator."""
    match split_set:
        case HybridSplits():
            return HybridSplitEnumerator(split_set, enumerator_for)
        case FileSet():
            return FileSplitEnumerator(split_set)
        case KafkaTopics():
            return KafkaSplitEnumerator(split_set)
        case NumberRange():
            return NumberSplitEnumerator(split_set)
        case PlannedSplits():
            return PlannedSplitEnumerator(split_set)
        case _:
            assert_never(split_set)


def split_set_of(enumerator: SplitEnumerator) -> SplitSet | None:
    """What ``enumerator_for`` makes it of; None: the JobManager does not know the kind."""
    match enumerator:
        case HybridSplitEnumerator():
            return enumerator.splits
        case FileSplitEnumerator():
            return enumerator.files
        case KafkaSplitEnumerator():
            return enumerator.topics
        case NumberSplitEnumerator():
            return enumerator.numbers
        case PlannedSplitEnumerator():
            return enumerator.planned
        case _:
            return None
