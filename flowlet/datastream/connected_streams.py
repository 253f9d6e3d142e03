"""``ConnectedStreams``: two streams that share one operator.

Side:   pure.
Source: PyFlink ``pyflink.datastream.data_stream``, which exports it here, too.
Absent: broadcast streams.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream.argument_checks import checked_object, declared_type
from flowlet.datastream.functions import CoFlatMapFunction, CoMapFunction, CoProcessFunction, KeyedCoProcessFunction, KeySelector
from flowlet.errors import JobGraphError
from flowlet.graph.transformation import (
    CoFlatMapTransformation,
    CoMapTransformation,
    CoProcessTransformation,
    PartitionTransformation,
    TwoInputTransformation,
)

if TYPE_CHECKING:
    from flowlet.datastream.data_stream import DataStream

__all__ = ["ConnectedStreams"]


class ConnectedStreams:
    """Two streams whose records go to one function; made by ``DataStream.connect``."""

    __slots__ = ("_then", "stream1", "stream2")

    def __init__(
        self, stream1: "DataStream", stream2: "DataStream", then: "Callable[[TwoInputTransformation], DataStream] | None" = None
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
        return ConnectedStreams(self.stream1.key_by(key_selector1, key_type), self.stream2.key_by(key_selector2, key_type))

    def map(self, func: CoMapFunction, output_type: TypeInformation | None = None) -> "DataStream":
        """Apply a function that returns one record, or None for none, for each record of either stream."""
        function = checked_object(func, "map", CoMapFunction)
        return self._then(CoMapTransformation(name="Co-Map", function=function, **self._inherited(output_type)))

    def flat_map(self, func: CoFlatMapFunction, output_type: TypeInformation | None = None) -> "DataStream":
        """Apply a function that returns any number of records for each record of either stream."""
        function = checked_object(func, "flat_map", CoFlatMapFunction)
        return self._then(CoFlatMapTransformation(name="Co-Flat Map", function=function, **self._inherited(output_type)))

    def process(self, func: CoProcessFunction | KeyedCoProcessFunction, output_type: TypeInformation | None = None) -> "DataStream":
        """Apply a process function; a ``KeyedCoProcessFunction`` requires that both streams are keyed.

        Where only one of them is keyed, its records go to the subtask of their key, and the function sees no key (as in PyFlink): so a
        keyed stream meets one that is ``broadcast()``.

        Raises:
            JobGraphError: it is no such function, or the function needs keys.
        """
        is_keyed = self._is_keyed(self.stream1) and self._is_keyed(self.stream2)
        if isinstance(func, KeyedCoProcessFunction) and not is_keyed:
            raise JobGraphError("process() with a KeyedCoProcessFunction needs both streams keyed; call key_by(selector1, selector2)")
        function = checked_object(func, "process", KeyedCoProcessFunction if is_keyed else CoProcessFunction, CoProcessFunction)
        name = "Keyed Co-Process" if is_keyed else "Co-Process"
        return self._then(CoProcessTransformation(name=name, function=function, **self._inherited(output_type)))

    @staticmethod
    def _is_keyed(stream: "DataStream") -> bool:
        transformation = stream._transformation  # the output of a keyed operator is not keyed
        return isinstance(transformation, PartitionTransformation) and transformation.key_selector is not None

    def _inherited(self, output_type: TypeInformation | None) -> dict[str, Any]:
        return {**self.stream1._inherited(declared_type(output_type)), "second_input": self.stream2._transformation}
