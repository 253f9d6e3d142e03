"""The DataStream API: build a program of streams and run it."""

from typing import TYPE_CHECKING

from flowlet.common.not_yet import missing_names
from netstack.late import late_names

if TYPE_CHECKING:
    from flowlet.datastream.async_data_stream import AsyncDataStream
    from flowlet.datastream.checkpoint_config import CheckpointConfig
    from flowlet.datastream.checkpoint_storage import (
        CheckpointStorage,
        FileSystemCheckpointStorage,
        JobManagerCheckpointStorage,
    )
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
    from flowlet.datastream.slot_sharing_group import MemorySize, SlotSharingGroup
    from flowlet.datastream.state_backend import (
        EmbeddedRocksDBStateBackend,
        HashMapStateBackend,
        PredefinedOptions,
        StateBackend,
    )
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
    "CheckpointStorage",
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
    "FileSystemCheckpointStorage",
    "FilterFunction",
    "FlatJoinFunction",
    "FlatMapFunction",
    "Function",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "GlobalWindow",
    "HashMapStateBackend",
    "JobManagerCheckpointStorage",
    "JoinFunction",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "KeyedStream",
    "MapFunction",
    "MemorySize",
    "MergingWindowAssigner",
    "OutputTag",
    "Partitioner",
    "PredefinedOptions",
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
    __getattr__, __dir__ = late_names(
        __name__,
        {
            "datastream.async_data_stream": "AsyncDataStream",
            "datastream.checkpoint_config": "CheckpointConfig",
            "datastream.checkpoint_storage": (
                "CheckpointStorage FileSystemCheckpointStorage JobManagerCheckpointStorage"
            ),
            "datastream.checkpointing_mode": "CheckpointingMode",
            "datastream.connected_streams": "BroadcastConnectedStream BroadcastStream ConnectedStreams",
            "datastream.data_stream": "CloseableIterator DataStream DataStreamSink",
            "datastream.execution_mode": "RuntimeExecutionMode",
            "datastream.externalized_checkpoint_retention": "ExternalizedCheckpointRetention",
            "datastream.functions": (
                "AggregateFunction AllWindowFunction AsyncFunction AsyncRetryPredicate AsyncRetryStrategy "
                "BaseBroadcastProcessFunction BroadcastProcessFunction CheckpointedFunction CheckpointListener "
                "CoFlatMapFunction CoGroupFunction CoMapFunction CoProcessFunction FilterFunction FlatJoinFunction "
                "FlatMapFunction Function FunctionInitializationContext FunctionSnapshotContext JoinFunction "
                "KeyedBroadcastProcessFunction KeyedCoProcessFunction KeyedProcessFunction KeyedStateStore "
                "KeySelector MapFunction Partitioner ProcessAllWindowFunction ProcessFunction ProcessJoinFunction "
                "ProcessWindowFunction ReduceFunction RuntimeContext SinkContext SinkFunction WindowFunction"
            ),
            "datastream.keyed_stream": "KeyedStream",
            "datastream.output_tag": "OutputTag",
            "datastream.sinks.two_phase_commit_sink_function": "TwoPhaseCommitSinkFunction",
            "datastream.slot_sharing_group": "MemorySize SlotSharingGroup",
            "datastream.state_backend": (
                "EmbeddedRocksDBStateBackend HashMapStateBackend PredefinedOptions StateBackend"
            ),
            "datastream.stream_execution_environment": "StreamExecutionEnvironment",
            "datastream.time_domain": "TimeDomain",
            "datastream.timerservice": "TimerService",
            "datastream.user_functions.source_function": "SourceContext SourceFunction",
            "datastream.window": (
                "CountWindow GlobalWindow MergingWindowAssigner TimeWindow Trigger TriggerResult Window WindowAssigner"
            ),
            "datastream.windowed_stream": "AllWindowedStream WindowedStream",
        },
        missing_names(__name__),
    )
