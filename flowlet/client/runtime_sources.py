"""From the description of a source in a program to its readers in the tasks.

Side:   shared.  The factories of source operators name these functions; jobs without such sources do not load them.
"""

from collections.abc import Mapping
from typing import Any

from flowlet.common.checks import is_name, is_whole_number
from flowlet.connectors.files.api import FileSource
from flowlet.connectors.files.reader import text_lines
from flowlet.connectors.kafka.api import KafkaSource
from flowlet.connectors.numbers.reader import numbered_records
from flowlet.connectors.planned_split_source import PlannedSplitReader
from flowlet.connectors.sources_in_turn import SourcesInTurn
from flowlet.connectors.split_reader import AssignedSource
from flowlet.datastream.connectors.base import BuiltInSource, SplitSource
from flowlet.datastream.connectors.datagen import DataGeneratorSource
from flowlet.datastream.connectors.hybrid_source import HybridSource
from flowlet.datastream.connectors.number_seq import NumberSequenceSource
from flowlet.datastream.remote_gate import RemoteGate
from flowlet.errors import JobGraphError, JobSubmissionError
from flowlet.operators.source_reader import Source
from flowlet.serde.pickles import program_pickle
from flowlet.serde.pickles.program_pickle import describe_unpicklable
from flowlet.splits.split_kinds import FileSet, PlannedSplit, PlannedSplits


def runtime_source(source: BuiltInSource, name: str, parallelism: int) -> Source:
    """Make the source whose readers run in the tasks; its splits are planned now, if they are planned at all.

    Raises:
        JobGraphError: there is none for this kind, or its splits are not as they should be.
        JobSubmissionError: one of them cannot be pickled.
    """
    if isinstance(source, HybridSource):
        return SourcesInTurn(*(_assigned_source(each, name, parallelism) for each in source.sources))
    return _assigned_source(source, name, parallelism)


def _assigned_source(source: BuiltInSource, name: str, parallelism: int) -> AssignedSource[Any]:
    match source:
        case SplitSource():
            return planned_source(source, name, parallelism)
        case FileSource():
            return text_lines(FileSet(source.paths, source.stream_format.charset_name, source.split_bytes))
        case NumberSequenceSource():
            return numbered_records(source.start, source.end + 1)
        case DataGeneratorSource():
            limit = source.rate_limiter_strategy
            return numbered_records(0, source.count, function=source.generator_function, limit=limit)
        case KafkaSource():
            from flowlet.connectors.kafka.reader import KafkaReader  # only these jobs need it

            return AssignedSource(
                KafkaReader,
                source.topics,
                is_bounded=source.is_bounded,
                properties=source.topics.properties,
                deserializer=source.deserializer,
                commits_offsets=source.commits_offsets,
            )
        case _:
            raise JobGraphError(
                f"from_source(): nothing reads a {type(source).__name__}; derive your own source from Source"
            )


def remote_gate_source(gate: RemoteGate) -> Source:
    """Make the source that reads the records which producers outside the cluster push."""
    from flowlet.connectors.gates.reader import EventTimeColumn, RemoteGateSource

    event_time = None if gate.event_time is None else EventTimeColumn(gate.event_time, gate.event_time_position)
    return RemoteGateSource(gate.name, gate.type_info, gate.producers, gate.key_groups, event_time)


def planned_source(source: SplitSource, name: str, parallelism: int) -> AssignedSource[PlannedSplitReader]:
    """Make the runtime's source for a user's, whose splits are planned now.

    Raises:
        JobGraphError: there are no splits, or they are not as they should be.
        JobSubmissionError: one of them cannot be pickled.
    """
    limit: Any = source.max_open_splits
    if limit is not None and (not is_whole_number(limit) or limit < 1):
        raise JobGraphError(f"source {name!r}: max_open_splits is None (all) or 1 or more, not {limit!r}")
    splits: Any = source.create_splits(parallelism)
    if not isinstance(splits, Mapping) or not splits or not all(map(is_name, splits)):
        raise JobGraphError(
            f"source {name!r}: create_splits() returns a dict with a name for each split, at least one, got {splits!r}"
        )
    planned = tuple(PlannedSplit(split, _pickled(content, name, split)) for split, content in splits.items())
    return AssignedSource(
        PlannedSplitReader,
        PlannedSplits(planned, is_on_demand=limit is not None),
        is_bounded=source.is_bounded,
        source=source,
    )


def _pickled(content: object, name: str, split: str) -> bytes:
    try:
        return program_pickle.dumps(content)
    except Exception as error:
        raise JobSubmissionError(
            f"source {name!r}: its split {split!r} cannot be sent: {describe_unpicklable(content, error, 'split')}"
        ) from error
