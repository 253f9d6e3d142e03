# The names of this package: type checkers read them here, and ``netstack.late`` when the package is imported.

from flowlet.datastream.async_data_stream import AsyncDataStream as AsyncDataStream
from flowlet.datastream.checkpoint_config import CheckpointConfig as CheckpointConfig
from flowlet.datastream.checkpoint_storage import CheckpointStorage as CheckpointStorage
from flowlet.datastream.checkpoint_storage import FileSystemCheckpointStorage as FileSystemCheckpointStorage
from flowlet.datastream.checkpoint_storage import JobManagerCheckpointStorage as JobManagerCheckpointStorage
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
from flowlet.datastream.functions import AggregateFunction as AggregateFunction
from flowlet.datastream.functions import AllWindowFunction as AllWindowFunction
from flowlet.datastream.functions import AsyncFunction as AsyncFunction
from flowlet.datastream.functions import AsyncRetryPredicate as AsyncRetryPredicate
from flowlet.datastream.functions import AsyncRetryStrategy as AsyncRetryStrategy
from flowlet.datastream.functions import BaseBroadcastProcessFunction as BaseBroadcastProcessFunction
from flowlet.datastream.functions import BroadcastProcessFunction as BroadcastProcessFunction
from flowlet.datastream.functions import CheckpointedFunction as CheckpointedFunction
from flowlet.datastream.functions import CheckpointListener as CheckpointListener
from flowlet.datastream.functions import CoFlatMapFunction as CoFlatMapFunction
from flowlet.datastream.functions import CoGroupFunction as CoGroupFunction
from flowlet.datastream.functions import CoMapFunction as CoMapFunction
from flowlet.datastream.functions import CoProcessFunction as CoProcessFunction
from flowlet.datastream.functions import FilterFunction as FilterFunction
from flowlet.datastream.functions import FlatJoinFunction as FlatJoinFunction
from flowlet.datastream.functions import FlatMapFunction as FlatMapFunction
from flowlet.datastream.functions import Function as Function
from flowlet.datastream.functions import FunctionInitializationContext as FunctionInitializationContext
from flowlet.datastream.functions import FunctionSnapshotContext as FunctionSnapshotContext
from flowlet.datastream.functions import JoinFunction as JoinFunction
from flowlet.datastream.functions import KeyedBroadcastProcessFunction as KeyedBroadcastProcessFunction
from flowlet.datastream.functions import KeyedCoProcessFunction as KeyedCoProcessFunction
from flowlet.datastream.functions import KeyedProcessFunction as KeyedProcessFunction
from flowlet.datastream.functions import KeyedStateStore as KeyedStateStore
from flowlet.datastream.functions import KeySelector as KeySelector
from flowlet.datastream.functions import MapFunction as MapFunction
from flowlet.datastream.functions import Partitioner as Partitioner
from flowlet.datastream.functions import ProcessAllWindowFunction as ProcessAllWindowFunction
from flowlet.datastream.functions import ProcessFunction as ProcessFunction
from flowlet.datastream.functions import ProcessJoinFunction as ProcessJoinFunction
from flowlet.datastream.functions import ProcessWindowFunction as ProcessWindowFunction
from flowlet.datastream.functions import ReduceFunction as ReduceFunction
from flowlet.datastream.functions import RuntimeContext as RuntimeContext
from flowlet.datastream.functions import SinkContext as SinkContext
from flowlet.datastream.functions import SinkFunction as SinkFunction
from flowlet.datastream.functions import WindowFunction as WindowFunction
from flowlet.datastream.keyed_stream import AllWindowedStream as AllWindowedStream
from flowlet.datastream.keyed_stream import KeyedStream as KeyedStream
from flowlet.datastream.keyed_stream import WindowedStream as WindowedStream
from flowlet.datastream.output_tag import OutputTag as OutputTag
from flowlet.datastream.sinks.two_phase_commit_sink_function import (
    TwoPhaseCommitSinkFunction as TwoPhaseCommitSinkFunction,
)
from flowlet.datastream.slot_sharing_group import MemorySize as MemorySize
from flowlet.datastream.slot_sharing_group import SlotSharingGroup as SlotSharingGroup
from flowlet.datastream.state_backend import EmbeddedRocksDBStateBackend as EmbeddedRocksDBStateBackend
from flowlet.datastream.state_backend import HashMapStateBackend as HashMapStateBackend
from flowlet.datastream.state_backend import PredefinedOptions as PredefinedOptions
from flowlet.datastream.state_backend import StateBackend as StateBackend
from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment as StreamExecutionEnvironment
from flowlet.datastream.time_domain import TimeDomain as TimeDomain
from flowlet.datastream.timerservice import TimerService as TimerService
from flowlet.datastream.user_functions.source_function import SourceContext as SourceContext
from flowlet.datastream.user_functions.source_function import SourceFunction as SourceFunction
from flowlet.datastream.window import CountWindow as CountWindow
from flowlet.datastream.window import GlobalWindow as GlobalWindow
from flowlet.datastream.window import MergingWindowAssigner as MergingWindowAssigner
from flowlet.datastream.window import TimeWindow as TimeWindow
from flowlet.datastream.window import Trigger as Trigger
from flowlet.datastream.window import TriggerResult as TriggerResult
from flowlet.datastream.window import Window as Window
from flowlet.datastream.window import WindowAssigner as WindowAssigner
