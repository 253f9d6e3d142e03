"""The DataStream API: build a program of streams and run it."""

from typing import TYPE_CHECKING

from flowlet.common.not_yet import missing_names
from flowlet.datastream.async_data_stream import AsyncDataStream
from flowlet.datastream.checkpoint_config import CheckpointConfig
from flowlet.datastream.checkpointing_mode import CheckpointingMode
from flowlet.datastream.connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
from flowlet.datastream.data_stream import CloseableIterator, DataStream, DataStreamSink
from flowlet.datastream.execution_mode import RuntimeExecutionMode
from flowlet.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from flowlet.datastream.functions import (
    AggregateFunction,
    AllWindowFunction,
    AsyncFunction,
    AsyncRetryPredicate,
    AsyncRetryStrategy,
    BaseBroadcastProcessFunction,
    BroadcastProcessFunction,
    CheckpointedFunction,
    CheckpointListener,
    CoFlatMapFunction,
    CoGroupFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatJoinFunction,
    FlatMapFunction,
    Function,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    JoinFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedStateStore,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RuntimeContext,
    SinkContext,
    SinkFunction,
    WindowFunction,
)
from flowlet.datastream.keyed_stream import KeyedStream
from flowlet.datastream.output_tag import OutputTag
from flowlet.datastream.sinks.two_phase_commit_sink_function import TwoPhaseCommitSinkFunction
from flowlet.datastream.slot_sharing_group import SlotSharingGroup
from flowlet.datastream.state_backend import EmbeddedRocksDBStateBackend, HashMapStateBackend, StateBackend
from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment
from flowlet.datastream.time_domain import TimeDomain
from flowlet.datastream.timerservice import TimerService
from flowlet.datastream.user_functions.source_function import SourceContext, SourceFunction
from flowlet.datastream.window import (
    CountWindow,
    GlobalWindow,
    MergingWindowAssigner,
    TimeWindow,
    Trigger,
    TriggerResult,
    Window,
    WindowAssigner,
)
from flowlet.datastream.windowed_stream import AllWindowedStream, WindowedStream

__all__ = [
    "AggregateFunction",
    "AllWindowFunction",
    "AllWindowedStream",
    "AsyncDataStream",
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "BaseBroadcastProcessFunction",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastStream",
    "CheckpointConfig",
    "CheckpointListener",
    "CheckpointedFunction",
    "CheckpointingMode",
    "CloseableIterator",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "ConnectedStreams",
    "CountWindow",
    "DataStream",
    "DataStreamSink",
    "EmbeddedRocksDBStateBackend",
    "ExternalizedCheckpointRetention",
    "FilterFunction",
    "FlatJoinFunction",
    "FlatMapFunction",
    "Function",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "GlobalWindow",
    "HashMapStateBackend",
    "JoinFunction",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "KeyedStream",
    "MapFunction",
    "MergingWindowAssigner",
    "OutputTag",
    "Partitioner",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RuntimeContext",
    "RuntimeExecutionMode",
    "SinkContext",
    "SinkFunction",
    "SlotSharingGroup",
    "SourceContext",
    "SourceFunction",
    "StateBackend",
    "StreamExecutionEnvironment",
    "TimeDomain",
    "TimeWindow",
    "TimerService",
    "Trigger",
    "TriggerResult",
    "TwoPhaseCommitSinkFunction",
    "Window",
    "WindowAssigner",
    "WindowFunction",
    "WindowedStream",
]

if not TYPE_CHECKING:
    __getattr__ = missing_names(__name__)
