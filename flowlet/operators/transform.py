"""``map``, ``flat_map``, ``filter``.

Hot path.  One list comprehension (flat_map: one loop) per chunk over a list iterator that is kept in a variable: when the user's function
raises, the iterator stands behind the record that failed, so nothing is counted per record.

Side:   task.
Source: Flink ``StreamMap``, ``StreamFlatMap``, ``StreamFilter``.  Records keep their timestamps; results get that of their record.
"""

from collections.abc import Iterator
from itertools import compress, islice, repeat
from typing import Any

from flowlet.fusing.stages import StepKind
from flowlet.operators.user_function import UserFunctionOperator, preview
from flowlet.records import Chunk

# Chunks of 1,000-2,000 tuples are best, 8,000 are 25 % slower (hot-path measurements); also what one generator may give before the
# consumers have their turn.
FLAT_MAP_CHUNK_RECORDS = 2_000


class TransformOperator(UserFunctionOperator):
    """What ``fused`` knows about the operators of this module.

    Args:
        kind: what the operator does with the function's results.
        function: the user's.
        name: for people.
    """

    def __init__(self, kind: StepKind, function: Any, name: str) -> None:
        super().__init__(name)
        self.kind = kind
        self.function = self._add(function, kind.value)


class MapOperator(TransformOperator):
    """One record for each.

    Args:
        function: a callable, or an object with ``map(value)``.
        name: for people.
    """

    def __init__(self, function: Any, *, name: str = "Map") -> None:
        super().__init__(StepKind.MAP, function, name)

    def process_chunk(self, chunk: Chunk) -> None:
        """Replace each record."""
        values = chunk.values
        records = iter(values)
        function = self.function.call
        try:
            mapped = [function(record) for record in records]
        except Exception as error:
            raise self._failure(values, records) from error
        self.output.collect(Chunk(mapped, chunk.timestamps))


class FilterOperator(TransformOperator):
    """Only the records for which the function is true.

    Args:
        function: a callable, or an object with ``filter(value)``.
        name: for people.
    """

    def __init__(self, function: Any, *, name: str = "Filter") -> None:
        super().__init__(StepKind.FILTER, function, name)

    def process_chunk(self, chunk: Chunk) -> None:
        """Drop records; emits nothing if none stays."""
        values, timestamps = chunk.values, chunk.timestamps
        records = iter(values)
        function = self.function.call
        try:
            if timestamps is None:
                kept = [record for record in records if function(record)]
            else:
                selectors = [True if function(record) else False for record in records]  # noqa: SIM210 - bool() would be one more call
                kept, timestamps = list(compress(values, selectors)), list(compress(timestamps, selectors))
        except Exception as error:
            raise self._failure(values, records) from error
        if kept:
            self.output.collect(Chunk(kept, timestamps))


class FlatMapOperator(TransformOperator):
    """Any number of records for each.

    Results go on in chunks of about ``FLAT_MAP_CHUNK_RECORDS``; a generator is not read further before its results were taken, so
    that it may give more than fits into memory.

    Args:
        function: a callable, or an object with ``flat_map(value)``; returns an iterable or is a generator function.
        name: for people.
    """

    def __init__(self, function: Any, *, name: str = "Flat Map") -> None:
        super().__init__(StepKind.FLAT_MAP, function, name)

    def process_chunk(self, chunk: Chunk) -> None:
        """Replace each record by what the function makes of it."""
        values = chunk.values
        records = iter(values)
        batches = self._batches(records, None if chunk.timestamps is None else iter(chunk.timestamps))
        while True:
            try:
                batch = next(batches, None)
            except NotIterableError as error:
                raise self._failure(values, records) from advice(error.result)
            except Exception as error:
                raise self._failure(values, records) from error
            if batch is None:
                return
            self.output.collect(batch)
            del batch  # its records go before the next ones are made, while they are in the cache

    def _batches(self, records: Iterator[Any], timestamps: Iterator[int] | None) -> Iterator[Chunk]:
        function = self.function.call
        limit = FLAT_MAP_CHUNK_RECORDS
        results: list[Any] = []
        stamps: list[int] = []
        timestamp = 0
        for record in records:
            if timestamps is not None:
                timestamp = next(timestamps)
            result = function(record)
            if type(result) is list:
                results += result
                rest: Iterator[Any] = _NOTHING
            else:
                rest = iterate(result)
                results += islice(rest, limit)
            # More than once only for an iterator with more than the limit.
            while len(results) >= limit:
                stamps += repeat(timestamp, len(results) - len(stamps))
                yield Chunk(results, None if timestamps is None else stamps)
                results, stamps = list(islice(rest, limit)), []
            if timestamps is not None:
                stamps += repeat(timestamp, len(results) - len(stamps))
        if results:
            yield Chunk(results, None if timestamps is None else stamps)


_NOTHING: Iterator[Any] = iter(())


class NotIterableError(Exception):
    """What a flat_map function returned is no iterable."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


def iterate(result: Any) -> Iterator[Any]:
    """An iterator over what a flat_map function returned.

    Raises:
        NotIterableError: there is none.
    """
    try:
        return iter(result)
    except TypeError:
        # An __iter__ of the user's may fail too: that is the user's error, to be shown as it is.
        if hasattr(type(result), "__iter__"):
            raise
        raise NotIterableError(result) from None


def advice(result: Any) -> TypeError:
    """What to tell the user about such a result."""
    what = "None" if result is None else f"{preview(result)} of type {type(result).__name__}"
    return TypeError(f"a flat_map function yields its results or returns a list of them ([] for none, [x] for one); got {what}")
