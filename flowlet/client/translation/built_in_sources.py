"""What reads a source of flowlet's own: from the description in a program to the source of the runtime.

Side: shared.
"""

from collections.abc import Callable
from typing import assert_never

from flowlet.connectors.number_source import NumberSource
from flowlet.connectors.rate_limits import RateLimit, RecordsPerCheckpoint, RecordsPerSecond
from flowlet.connectors.text_line_source import TextLineSource
from flowlet.datastream.connectors.base import BuiltInSource
from flowlet.datastream.connectors.datagen import DataGeneratorSource, RateLimiterStrategy, RateUnit
from flowlet.datastream.connectors.file_system import FileSource
from flowlet.datastream.connectors.kafka_source import KafkaSource
from flowlet.datastream.connectors.number_seq import NumberSequenceSource
from flowlet.errors import JobGraphError
from flowlet.operators.source_operator import Source
from flowlet.splits.file_split import FileSet


def runtime_source(source: BuiltInSource) -> Source:
    """The source whose readers run in the tasks.  Raises JobGraphError: there is none for this kind."""
    match source:
        case FileSource():
            return TextLineSource(FileSet(source.paths, source.stream_format.charset_name, source.split_bytes))
        case NumberSequenceSource():
            return NumberSource(source.start, source.end + 1)
        case DataGeneratorSource():
            return NumberSource(0, source.count, function=source.generator_function, limit=_limit(source.rate_limiter_strategy))
        case KafkaSource():
            from flowlet.connectors.kafka.kafka_reader import KafkaLogSource  # only these jobs need it

            return KafkaLogSource(source.topics, source.deserializer, is_bounded=source.is_bounded, commits_offsets=source.commits_offsets)
        case _:
            raise JobGraphError(f"from_source(): nothing reads a {type(source).__name__}; derive your own source from Source")


def _limit(strategy: RateLimiterStrategy) -> Callable[[int], RateLimit] | None:
    """What makes the limit of one of so many readers."""
    records = strategy.records
    match strategy.unit:
        case RateUnit.NONE:
            return None
        case RateUnit.SECOND:
            return lambda parallelism: RecordsPerSecond(records / parallelism)
        case RateUnit.CHECKPOINT:
            return lambda parallelism: RecordsPerCheckpoint(max(int(records) // parallelism, 1))
        case _:
            assert_never(strategy.unit)
