"""The DataStream API: build a program of streams and run it."""

from typing import TYPE_CHECKING

from flowlet.common.not_yet import missing_names
from netstack.late import late_names

if TYPE_CHECKING:
    from flowlet.datastream.async_data_stream import AsyncDataStream as AsyncDataStream
    from flowlet.datastream.checkpoint_config import CheckpointConfig as CheckpointConfig
    from flowlet.datastream.checkpoint_storage import *  # noqa: F403 - they are all below
    from flowlet.datastream.checkpointing_mode import CheckpointingMode as CheckpointingMode
    from flowlet.datastream.data_stream import BroadcastConnectedStream as BroadcastConnectedStream
    from flowlet.datastream.data_stream import BroadcastStream as BroadcastStream
    from flowlet.datastream.data_stream import CloseableIterator as CloseableIterator
    from flowlet.datastream.data_stream import ConnectedStreams as ConnectedStreams
    from flowlet.datastream.data_stream import DataStream as DataStream
    from flowlet.datastream.data_stream import DataStreamSink as DataStreamSink
    from flowlet.datastream.execution_mode import RuntimeExecutionMode as RuntimeExecutionMode
    from flowlet.datastream.externalized_checkpoint_retention import (
        ExternalizedCheckpointRetention as ExternalizedCheckpointRetention,
    )
    from flowlet.datastream.functions import *  # noqa: F403 - they are all below
    from flowlet.datastream.keyed_stream import AllWindowedStream as AllWindowedStream
    from flowlet.datastream.keyed_stream import KeyedStream as KeyedStream
    from flowlet.datastream.keyed_stream import WindowedStream as WindowedStream
    from flowlet.datastream.output_tag import OutputTag as OutputTag
    from flowlet.datastream.sinks.two_phase_commit_sink_function import (
        TwoPhaseCommitSinkFunction as TwoPhaseCommitSinkFunction,
    )
    from flowlet.datastream.slot_sharing_group import *  # noqa: F403 - they are all below
    from flowlet.datastream.state_backend import *  # noqa: F403 - they are all below
    from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment as StreamExecutionEnvironment
    from flowlet.datastream.time_domain import TimeDomain as TimeDomain
    from flowlet.datastream.timerservice import TimerService as TimerService
    from flowlet.datastream.user_functions.source_function import *  # noqa: F403 - they are all below
    from flowlet.datastream.window import CountWindow as CountWindow
    from flowlet.datastream.window import GlobalWindow as GlobalWindow
    from flowlet.datastream.window import MergingWindowAssigner as MergingWindowAssigner
    from flowlet.datastream.window import TimeWindow as TimeWindow
    from flowlet.datastream.window import Trigger as Trigger
    from flowlet.datastream.window import TriggerResult as TriggerResult
    from flowlet.datastream.window import Window as Window
    from flowlet.datastream.window import WindowAssigner as WindowAssigner

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = late_names(
        __name__,
        {
            "datastream.async_data_stream": "AsyncDataStream",
            "datastream.checkpoint_config": "CheckpointConfig",
            "datastream.checkpoint_storage": (
                "CheckpointStorage FileSystemCheckpointStorage JobManagerCheckpointStorage"
            ),
            "datastream.checkpointing_mode": "CheckpointingMode",
            "datastream.data_stream": (
                "BroadcastConnectedStream BroadcastStream CloseableIterator ConnectedStreams DataStream DataStreamSink"
            ),
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
            "datastream.keyed_stream": "AllWindowedStream KeyedStream WindowedStream",
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
        },
        missing_names(__name__),
    )
