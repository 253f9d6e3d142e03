"""The DataStream API: build a program of streams and run it."""

from typing import TYPE_CHECKING

from flowlet.common.not_yet import missing_names
from flowlet.datastream.async_data_stream import AsyncDataStream
from flowlet.datastream.checkpoint_config import CheckpointConfig
from flowlet.datastream.checkpointing_mode import CheckpointingMode
from flowlet.datastream.connected_streams import ConnectedStreams
from flowlet.datastream.data_stream import CloseableIterator, DataStream, DataStreamSink, KeyedStream
from flowlet.datastream.execution_mode import RuntimeExecutionMode
from flowlet.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from flowlet.datastream.functions import (
    AggregateFunction,
    AsyncFunction,
    AsyncRetryPredicate,
    AsyncRetryStrategy,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
)
from flowlet.datastream.output_tag import OutputTag
from flowlet.datastream.slot_sharing_group import SlotSharingGroup
from flowlet.datastream.source_function import SourceContext, SourceFunction
from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment
from flowlet.datastream.time_domain import TimeDomain
from flowlet.datastream.timerservice import TimerService

__all__ = [
    "AggregateFunction",
    "AsyncDataStream",
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "CheckpointConfig",
    "CheckpointingMode",
    "CloseableIterator",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "ExternalizedCheckpointRetention",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeySelector",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "MapFunction",
    "OutputTag",
    "Partitioner",
    "ProcessFunction",
    "ReduceFunction",
    "RuntimeContext",
    "RuntimeExecutionMode",
    "SlotSharingGroup",
    "SourceContext",
    "SourceFunction",
    "StreamExecutionEnvironment",
    "TimeDomain",
    "TimerService",
]

if not TYPE_CHECKING:
    __getattr__ = missing_names(__name__)
