"""Two streams that share one operator: ``ConnectedStreams``, and a stream beside one that every subtask sees.

Side:   pure.
Source: PyFlink ``pyflink.datastream.data_stream``, which exports them here, too.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream.functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeySelector,
)
from flowlet.datastream.user_functions.argument_checks import checked_object, declared_type
from flowlet.errors import JobGraphError
from flowlet.graph.transformation import (
    BroadcastProcessTransformation,
    CoFlatMapTransformation,
    CoMapTransformation,
    CoProcessTransformation,
    PartitionTransformation,
    TwoInputTransformation,
)

if TYPE_CHECKING:
    from flowlet.datastream.data_stream import DataStream
    from flowlet.datastream.state import MapStateDescriptor

__all__ = ["BroadcastConnectedStream", "BroadcastStream", "ConnectedStreams"]


class ConnectedStreams:
    """Two streams whose records go to one function; made by ``DataStream.connect``."""

    __slots__ = ("_then", "stream1", "stream2")

    def __init__(
        self,
        stream1: "DataStream",
        stream2: "DataStream",
        then: "Callable[[TwoInputTransformation], DataStream] | None" = None,
    ) -> None:
        if stream1.get_execution_environment() is not stream2.get_execution_environment():
            raise JobGraphError("connect() needs two streams of the same environment")
        self.stream1 = stream1
        self.stream2 = stream2
        self._then = stream1._then if then is None else then

    def key_by(
        self,
        key_selector1: Callable[[Any], Any] | KeySelector,
        key_selector2: Callable[[Any], Any] | KeySelector,
        key_type: TypeInformation | None = None,
    ) -> "ConnectedStreams":
        """Key both streams: records of either stream with the same key go to the same subtask."""
        return ConnectedStreams(
            self.stream1.key_by(key_selector1, key_type), self.stream2.key_by(key_selector2, key_type)
        )

    def map(self, func: CoMapFunction, output_type: TypeInformation | None = None) -> "DataStream":
        """Apply a function that returns one record, or None for none, for each record of either stream."""
        function = checked_object(func, "map", CoMapFunction)
        return self._then(CoMapTransformation(name="Co-Map", function=function, **self._inherited(output_type)))

    def flat_map(self, func: CoFlatMapFunction, output_type: TypeInformation | None = None) -> "DataStream":
        """Apply a function that returns any number of records for each record of either stream."""
        function = checked_object(func, "flat_map", CoFlatMapFunction)
        return self._then(
            CoFlatMapTransformation(name="Co-Flat Map", function=function, **self._inherited(output_type))
        )

    def process(
        self, func: CoProcessFunction | KeyedCoProcessFunction, output_type: TypeInformation | None = None
    ) -> "DataStream":
        """Apply a process function; a ``KeyedCoProcessFunction`` requires that both streams are keyed.

        Where only one of them is keyed, its records go to the subtask of their key, and the function sees no key (as in
        PyFlink): so a keyed stream meets one that is ``broadcast()``.

        Raises:
            JobGraphError: it is no such function, or the function needs keys.
        """
        is_keyed = is_keyed_stream(self.stream1) and is_keyed_stream(self.stream2)
        if isinstance(func, KeyedCoProcessFunction) and not is_keyed:
            raise JobGraphError(
                "process() with a KeyedCoProcessFunction needs both streams keyed; call key_by(selector1, selector2)"
            )
        function = checked_object(
            func, "process", KeyedCoProcessFunction if is_keyed else CoProcessFunction, CoProcessFunction
        )
        name = "Keyed Co-Process" if is_keyed else "Co-Process"
        return self._then(CoProcessTransformation(name=name, function=function, **self._inherited(output_type)))

    def _inherited(self, output_type: TypeInformation | None) -> dict[str, Any]:
        return {**self.stream1._inherited(declared_type(output_type)), "second_input": self.stream2._transformation}


class BroadcastStream:
    """A stream whose records every subtask of its reader sees, with the states that they change; made by
    ``DataStream.broadcast``.
    """

    __slots__ = ("broadcast_state_descriptors", "input_stream")

    def __init__(self, input_stream: "DataStream", broadcast_state_descriptors: "Sequence[MapStateDescriptor]") -> None:
        self.input_stream = input_stream
        self.broadcast_state_descriptors = list(broadcast_state_descriptors)


class BroadcastConnectedStream:
    """A stream beside a broadcast stream; made by ``DataStream.connect``."""

    __slots__ = ("broadcast_state_descriptors", "broadcast_stream", "non_broadcast_stream")

    def __init__(
        self,
        non_broadcast_stream: "DataStream",
        broadcast_stream: BroadcastStream,
        broadcast_state_descriptors: "Sequence[MapStateDescriptor]",
    ) -> None:
        if (
            non_broadcast_stream.get_execution_environment()
            is not broadcast_stream.input_stream.get_execution_environment()
        ):
            raise JobGraphError("connect() needs two streams of the same environment")
        self.non_broadcast_stream = non_broadcast_stream
        self.broadcast_stream = broadcast_stream
        self.broadcast_state_descriptors = list(broadcast_state_descriptors)

    def process(
        self, func: BroadcastProcessFunction | KeyedBroadcastProcessFunction, output_type: TypeInformation | None = None
    ) -> "DataStream":
        """Apply a function: a ``KeyedBroadcastProcessFunction`` exactly where the stream that is not broadcast is
        keyed.

        There is no order between the streams.  In BATCH mode the broadcast stream comes first, as in Flink.

        Raises:
            JobGraphError: it is no such function, or one for the other kind of stream.
        """
        stream = self.non_broadcast_stream
        is_keyed = is_keyed_stream(stream)
        if isinstance(func, BroadcastProcessFunction) and is_keyed:
            raise JobGraphError(
                "process() of a keyed stream and a broadcast stream needs a KeyedBroadcastProcessFunction"
            )
        if isinstance(func, KeyedBroadcastProcessFunction) and not is_keyed:
            raise JobGraphError(
                "process() with a KeyedBroadcastProcessFunction needs a keyed stream; call key_by(...) before "
                "connect(...)"
            )
        function = checked_object(
            func, "process", KeyedBroadcastProcessFunction if is_keyed else BroadcastProcessFunction
        )
        return stream._then(
            BroadcastProcessTransformation(
                name="Co-Process-Broadcast-Keyed" if is_keyed else "Co-Process-Broadcast",
                function=function,
                descriptors=tuple(self.broadcast_state_descriptors),
                second_input=self.broadcast_stream.input_stream._transformation,
                **stream._inherited(declared_type(output_type)),
            )
        )


def is_keyed_stream(stream: "DataStream") -> bool:
    """Whether it was made by ``key_by``; the output of a keyed operator is not keyed."""
    transformation = stream._transformation
    return isinstance(transformation, PartitionTransformation) and transformation.key_selector is not None
