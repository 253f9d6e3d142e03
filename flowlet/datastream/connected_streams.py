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
from flowlet.graph.transformation import GraphValue, OperatorFactory, OperatorTransformation

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
        then: "Callable[[OperatorTransformation], DataStream] | None" = None,
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
        factory = OperatorFactory.of(
            "flowlet.operators.co_functions:CoMapOperator", function=function, key_selectors=self._key_selectors
        )
        return self._then(self._step("Co-Map", factory, output_type))

    def flat_map(self, func: CoFlatMapFunction, output_type: TypeInformation | None = None) -> "DataStream":
        """Apply a function that returns any number of records for each record of either stream."""
        function = checked_object(func, "flat_map", CoFlatMapFunction)
        factory = OperatorFactory.of(
            "flowlet.operators.co_functions:CoFlatMapOperator", function=function, key_selectors=self._key_selectors
        )
        return self._then(self._step("Co-Flat Map", factory, output_type))

    def process(
        self, func: CoProcessFunction | KeyedCoProcessFunction, output_type: TypeInformation | None = None
    ) -> "DataStream":
        """Apply a process function; a ``KeyedCoProcessFunction`` requires that both streams are keyed.

        Where only one of them is keyed, its records go to the subtask of their key, and the function sees no key (as in
        PyFlink): so a keyed stream meets one that is ``broadcast()``.

        Raises:
            JobGraphError: it is no such function, or the function needs keys.
        """
        is_keyed = self._key_selectors is not None
        if isinstance(func, KeyedCoProcessFunction) and not is_keyed:
            raise JobGraphError(
                "process() with a KeyedCoProcessFunction needs both streams keyed; call key_by(selector1, selector2)"
            )
        function = checked_object(
            func, "process", KeyedCoProcessFunction if is_keyed else CoProcessFunction, CoProcessFunction
        )
        factory = OperatorFactory.of(
            "flowlet.operators.process_operator:CoProcessOperator",
            function=function,
            key_selectors=self._key_selectors,
            is_batch=GraphValue.IS_BATCH,
        )
        return self._then(self._step("Keyed Co-Process" if is_keyed else "Co-Process", factory, output_type))

    @property
    def _key_selectors(self) -> tuple[Any, Any] | None:
        """Those of both streams; None where one is not keyed: the function sees no keys then."""
        selectors = (self.stream1._key_selector, self.stream2._key_selector)
        return None if None in selectors else selectors

    def _step(self, name: str, factory: OperatorFactory, output_type: TypeInformation | None) -> OperatorTransformation:
        second_input = self.stream2._transformation
        return self.stream1._step(name, factory, declared_type(output_type), second_input=second_input)


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
        is_keyed = stream._key_selector is not None
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
        factory = OperatorFactory.of(
            "flowlet.operators.co_functions:BroadcastProcessOperator",
            function=function,
            descriptors=tuple(self.broadcast_state_descriptors),
            key_selector=stream._key_selector,
            is_batch=GraphValue.IS_BATCH,
        )
        name = "Co-Process-Broadcast-Keyed" if is_keyed else "Co-Process-Broadcast"
        step = stream._step(name, factory, declared_type(output_type), inputs_read_last=(0,))
        step.second_input = self.broadcast_stream.input_stream._transformation
        return stream._then(step)
