"""``SplitStream``: one stream split by name.

Side:   pure.
Source: Flink's ``DataStream.split`` and ``SplitStream.select``, which side outputs have replaced; not in PyFlink.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from flowlet.common.checks import is_name
from flowlet.datastream.output_tag import OutputTag
from flowlet.errors import JobGraphError
from flowlet.graph.transformation import OperatorFactory, OperatorTransformation, selection_tag

if TYPE_CHECKING:
    from flowlet.datastream.data_stream import DataStream

__all__ = ["SplitStream"]


class SplitStream:
    """A stream with names on its records; made by ``DataStream.split``."""

    __slots__ = ("_side_output", "_transformation")

    def __init__(
        self, transformation: OperatorTransformation, side_output: "Callable[[OutputTag], DataStream]"
    ) -> None:
        self._transformation = transformation
        self._side_output = side_output

    def select(self, *names: str) -> "DataStream":
        """The records with at least one of the names, each once.

        Raises JobGraphError if there is no name, or one is no text.
        """
        if not names or not all(map(is_name, names)):
            raise JobGraphError(f"select() needs one or more names, got {names!r}")
        selection = frozenset(names)
        factory = self._transformation.factory
        selections = factory.arguments["selections"]
        if selection not in selections:
            arguments = {**factory.arguments, "selections": (*selections, selection)}
            self._transformation.factory = OperatorFactory(factory.target, arguments)
        return self._side_output(OutputTag(selection_tag(selection), self._transformation.output_type))
