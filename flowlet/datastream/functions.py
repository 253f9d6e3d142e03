"""The functions that users write as classes.

Side:   pure.  An instance is made in the user's program, pickled, and called on the thread of one task.
Source: PyFlink ``pyflink.datastream.functions``.
Absent: Java-backed functions.
Defined: in ``user_functions``, which imports nothing of this package.
"""
# ruff: noqa: F403, F405 - __all__ lists the names

from flowlet.common.not_yet import explain_missing_names
from flowlet.datastream.async_retry_strategies import AsyncRetryPredicate, AsyncRetryStrategy
from flowlet.datastream.states.runtime_context import *
from flowlet.datastream.user_functions.function import *
from flowlet.datastream.user_functions.process_functions import *
from flowlet.datastream.user_functions.record_functions import *
from flowlet.datastream.user_functions.source_function import SourceFunction

__all__ = [
    "AggregateFunction",
    "AllWindowFunction",
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "BaseBroadcastProcessFunction",
    "BroadcastProcessFunction",
    "CheckpointListener",
    "CheckpointedFunction",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "FilterFunction",
    "FlatJoinFunction",
    "FlatMapFunction",
    "Function",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "JoinFunction",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "MapFunction",
    "Partitioner",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RuntimeContext",
    "SinkContext",
    "SinkFunction",
    "SourceFunction",
    "WindowFunction",
]


explain_missing_names(__name__)
