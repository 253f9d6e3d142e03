"""``map`` and ``flat_map`` of two streams, and the sorting of one stream under names.

Hot path.  As ``transform``: the list iterator stands behind the record that failed, so nothing is counted per record.

Side:   task.
Source: Flink ``CoStreamMap``, ``CoStreamFlatMap``; ``DirectedOutput`` with its ``OutputSelector``: here an operator that emits each record
        once into every selection that asks for one of its names.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from flowlet.graph.transformation import selection_tag
from flowlet.operators.copying import copy_chunk
from flowlet.operators.multi_input import TwoInputStreamOperator
from flowlet.operators.user_function import UserFunctionOperator
from flowlet.records import Chunk


class CoMapOperator(UserFunctionOperator, TwoInputStreamOperator):
    """One record for each record of either input.

    Args:
        function: an object with ``map1(value)`` and ``map2(value)``.
        name: for people.
    """

    def __init__(self, function: Any, *, name: str = "Co-Map") -> None:
        super().__init__(name)
        self._function = self._add(function, "map1", "map2")

    def process_chunk1(self, chunk: Chunk) -> None:
        """Replace each record."""
        self._map("map1", chunk)

    def process_chunk2(self, chunk: Chunk) -> None:
        """Replace each record."""
        self._map("map2", chunk)

    def _map(self, method: str, chunk: Chunk) -> None:
        records = iter(chunk.values)
        function = _method(self._function.method(method))
        try:
            mapped = [function(record) for record in records]
        except Exception as error:
            raise self._failure(chunk.values, records) from error
        self.output.collect(Chunk(mapped, chunk.timestamps))


class CoFlatMapOperator(UserFunctionOperator, TwoInputStreamOperator):
    """Any number of records for each record of either input.

    Args:
        function: an object with ``flat_map1(value)`` and ``flat_map2(value)``, which return an iterable or None.
        name: for people.
    """

    def __init__(self, function: Any, *, name: str = "Co-Flat Map") -> None:
        super().__init__(name)
        self._function = self._add(function, "flat_map1", "flat_map2")

    def process_chunk1(self, chunk: Chunk) -> None:
        """Replace each record by what the function makes of it."""
        self._flat_map("flat_map1", chunk)

    def process_chunk2(self, chunk: Chunk) -> None:
        """Replace each record by what the function makes of it."""
        self._flat_map("flat_map2", chunk)

    def _flat_map(self, method: str, chunk: Chunk) -> None:
        records = iter(chunk.values)
        function = _method(self._function.method(method))
        results: list[Any] = []
        stamps: list[int] | None = None if chunk.timestamps is None else []
        try:
            for timestamp, record in zip(chunk.timestamps or repeat(0), records):  # noqa: B905 - repeat has no end
                results += function(record) or ()
                if stamps is not None:
                    stamps += repeat(timestamp, len(results) - len(stamps))
        except Exception as error:
            raise self._failure(chunk.values, records) from error
        if results:
            self.output.collect(Chunk(results, stamps))


class SplitOperator(UserFunctionOperator):
    """Sorts records under names; the main output gets all of them.

    Args:
        function: a callable, or an object with ``select(value)``, that returns the names of a record.
        selections: the sets of names that somebody reads; each is the side output ``selection_tag(names)``.
        name: for people.
    """

    def __init__(self, function: Any, selections: Sequence[frozenset[str]], *, name: str = "Split") -> None:
        super().__init__(name)
        self._function = self._add(function, "select")
        self._selections = {selection_tag(names): names for names in selections}

    def process_chunk(self, chunk: Chunk) -> None:
        """Emit each record into every selection that asks for one of its names, once."""
        records = iter(chunk.values)
        function = self._function.call
        try:
            names = [_names(function(record)) for record in records]
        except Exception as error:
            raise self._failure(chunk.values, records) from error
        for tag_id, wanted in self._selections.items():
            indices = [index for index, found in enumerate(names) if not wanted.isdisjoint(found)]
            if indices:
                values, timestamps = chunk.values, chunk.timestamps
                stamps = None if timestamps is None else [timestamps[index] for index in indices]
                # One record may go to several readers, whatever the setting of object reuse: nobody else copies here.
                self.output.collect_side(tag_id, copy_chunk(Chunk([values[index] for index in indices], stamps)))
        self.output.collect(chunk)


def _names(selected: Any) -> Iterable[str]:
    if isinstance(selected, str):
        raise TypeError(f"an output selector returns a collection of names, got the text {selected!r}")
    return selected or ()


def _method(found: Callable[..., Any] | None) -> Callable[..., Any]:
    assert found is not None, "checked when the operator was made"
    return found
