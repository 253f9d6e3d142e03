"""The DataStream API: build a program of streams and run it."""

from flowlet.datastream.async_data_stream import AsyncDataStream
from flowlet.datastream.async_function import AsyncFunction
from flowlet.datastream.async_retry_strategies import AsyncRetryPredicate, AsyncRetryStrategy
from flowlet.datastream.data_stream import CloseableIterator, DataStream, DataStreamSink, KeyedStream
from flowlet.datastream.execution_mode import RuntimeExecutionMode
from flowlet.datastream.functions import (
    FilterFunction,
    FlatMapFunction,
    Function,
    KeySelector,
    MapFunction,
    ReduceFunction,
    RuntimeContext,
)
from flowlet.datastream.slot_sharing_group import SlotSharingGroup
from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment

__all__ = [
    "AsyncDataStream",
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "CloseableIterator",
    "DataStream",
    "DataStreamSink",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeySelector",
    "KeyedStream",
    "MapFunction",
    "ReduceFunction",
    "RuntimeContext",
    "RuntimeExecutionMode",
    "SlotSharingGroup",
    "StreamExecutionEnvironment",
]
