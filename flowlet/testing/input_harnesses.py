"""Operator harnesses for one and two inputs, with and without keys.

Side:       any.
Units:      milliseconds.
Source:     Flink ``OneInputStreamOperatorTestHarness``, ``TwoInputStreamOperatorTestHarness``,
            ``KeyedOneInputStreamOperatorTestHarness``, ``KeyedTwoInputStreamOperatorTestHarness``.
Raises:     the methods that process records raise ``UserFunctionError``, which names operator and record, if the user's
            function fails.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from flowlet.errors import KeyTypeError
from flowlet.keys.exact_keys import exact_key, key_group
from flowlet.records import LatencyMarker, WatermarkStatus
from flowlet.testing.harness_environment import SubtaskPlace
from flowlet.testing.operator_harness import OperatorHarness
from flowlet.timers.keyed_timer_service import Timer


class OneInputOperatorHarness(OperatorHarness):
    """Drives an operator with one input.

    Example::

        with OneInputOperatorHarness(MapOperator(str.upper)) as harness:
            harness.process_element("a", timestamp=5)
            harness.process_watermark(5)

            assert harness.output == [StreamRecord("A", 5), Watermark(5)]
    """

    def process_element(self, value: Any, timestamp: int | None = None) -> None:
        """Process one record, in a chunk of its own."""
        self.process_chunk([value], None if timestamp is None else [timestamp])

    def process_elements(self, values: Iterable[Any], timestamps: Iterable[int] | None = None) -> None:
        """Process records, each in a chunk of its own."""
        _one_by_one(self, 1, values, timestamps)

    def process_chunk(self, values: Iterable[Any], timestamps: Iterable[int] | None = None) -> None:
        """Process records in one chunk, as in a job."""
        self.process_input_chunk(1, values, timestamps)

    def process_watermark(self, timestamp: int) -> None:
        """Advance the input's watermark."""
        self.process_input_watermark(1, timestamp)

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """Make the input idle or active."""
        self.process_input_watermark_status(1, status)

    def process_latency_marker(self, marker: LatencyMarker) -> None:
        """Process a latency marker."""
        self.process_input_latency_marker(1, marker)


class TwoInputOperatorHarness(OperatorHarness):
    """Drives an operator with two inputs.

    Example::

        with TwoInputOperatorHarness(Enrich()) as harness:  # a CoProcessFunction
            harness.process_element1("order", timestamp=1)
            harness.process_element2("customer", timestamp=2)
            harness.process_watermark1(1)
            harness.process_watermark2(2)

            assert harness.watermarks == [1]
    """

    def process_element1(self, value: Any, timestamp: int | None = None) -> None:
        """Process one record of the first input, in a chunk of its own."""
        self.process_chunk1([value], None if timestamp is None else [timestamp])

    def process_element2(self, value: Any, timestamp: int | None = None) -> None:
        """Process one record of the second input, in a chunk of its own."""
        self.process_chunk2([value], None if timestamp is None else [timestamp])

    def process_elements1(self, values: Iterable[Any], timestamps: Iterable[int] | None = None) -> None:
        """Process records of the first input, each in a chunk of its own."""
        _one_by_one(self, 1, values, timestamps)

    def process_elements2(self, values: Iterable[Any], timestamps: Iterable[int] | None = None) -> None:
        """Process records of the second input, each in a chunk of its own."""
        _one_by_one(self, 2, values, timestamps)

    def process_chunk1(self, values: Iterable[Any], timestamps: Iterable[int] | None = None) -> None:
        """Process records of the first input in one chunk."""
        self.process_input_chunk(1, values, timestamps)

    def process_chunk2(self, values: Iterable[Any], timestamps: Iterable[int] | None = None) -> None:
        """Process records of the second input in one chunk."""
        self.process_input_chunk(2, values, timestamps)

    def process_watermark1(self, timestamp: int) -> None:
        """Advance the first input's watermark."""
        self.process_input_watermark(1, timestamp)

    def process_watermark2(self, timestamp: int) -> None:
        """Advance the second input's watermark."""
        self.process_input_watermark(2, timestamp)

    def process_both_watermarks(self, timestamp: int) -> None:
        """Advance the watermarks of both inputs."""
        self.process_watermark1(timestamp)
        self.process_watermark2(timestamp)

    def process_watermark_status1(self, status: WatermarkStatus) -> None:
        """Make the first input idle or active."""
        self.process_input_watermark_status(1, status)

    def process_watermark_status2(self, status: WatermarkStatus) -> None:
        """Make the second input idle or active."""
        self.process_input_watermark_status(2, status)


class _KeyedHarness(OperatorHarness):
    """Checks that records belong to this subtask by their keys, and finds timers by key."""

    def __init__(self, operator: Any, *key_selectors: Any, place: SubtaskPlace | None = None, **options: Any) -> None:
        super().__init__(operator, *key_selectors, place=place, **options)
        self._selects = [getattr(selector, "get_key", selector) for selector in key_selectors]

    def process_input_chunk(
        self, input_id: int, values: Iterable[Any], timestamps: Iterable[int] | None = None
    ) -> None:
        """Check the keys, then process the records of one input, in one chunk.

        Raises:
            ValueError: a key belongs to another subtask; no record was processed.
            UserFunctionError: as ``OperatorHarness.process_input_chunk``.
        """
        records = list(values)
        self._check_keys(self._selects[input_id - 1], records)
        super().process_input_chunk(input_id, records, timestamps)

    def _check_keys(self, select: Any, records: Sequence[Any]) -> None:
        if self.place.parallelism == 1:
            return
        for record in records:
            try:
                group = key_group(select(record), self.place.max_parallelism)
            except KeyTypeError:
                continue  # the operator reports it
            if group not in self.place.key_groups:
                raise ValueError(
                    f"the record {record!r} belongs to key group {group}, and {self.place} has {self.place.key_groups}"
                )

    def event_time_timers_of(self, key: Any) -> list[Timer]:
        """The event-time timers of one key."""
        return [timer for timer in self.event_time_timers if exact_key(timer.key) == exact_key(key)]

    def processing_time_timers_of(self, key: Any) -> list[Timer]:
        """The processing-time timers of one key."""
        return [timer for timer in self.processing_time_timers if exact_key(timer.key) == exact_key(key)]


class KeyedOneInputOperatorHarness(_KeyedHarness, OneInputOperatorHarness):
    """Drives an operator on a keyed stream; takes the operator, or function, and the key selector.

    Example::

        with KeyedOneInputOperatorHarness(Alarm(), lambda reading: reading[0]) as harness:  # a KeyedProcessFunction
            harness.process_element(("kitchen", 90), timestamp=1_000)
            assert harness.num_event_time_timers == 1

            harness.process_watermark(61_000)

            assert harness.values == ["kitchen is hot"]

    Raises:
        ValueError: a record's key belongs to another subtask (``place``).
    """

    def __init__(self, operator: Any, key_selector: Any, **options: Any) -> None:
        super().__init__(operator, key_selector, **options)


class KeyedTwoInputOperatorHarness(_KeyedHarness, TwoInputOperatorHarness):
    """Drives an operator on two keyed streams; takes the operator, or function, and both key selectors.

    Example::

        with KeyedTwoInputOperatorHarness(Join(), order_key, payment_key) as harness:  # a KeyedCoProcessFunction
            harness.process_element1(("a", 1))
            harness.process_element2(("a", 2))

    Raises:
        ValueError: a record's key belongs to another subtask (``place``).
    """

    def __init__(self, operator: Any, key_selector1: Any, key_selector2: Any, **options: Any) -> None:
        super().__init__(operator, key_selector1, key_selector2, **options)


def _one_by_one(
    harness: OperatorHarness, input_id: int, values: Iterable[Any], timestamps: Iterable[int] | None
) -> None:
    if timestamps is None:
        for value in values:
            harness.process_input_chunk(input_id, [value])
        return
    for value, timestamp in zip(values, timestamps, strict=True):
        harness.process_input_chunk(input_id, [value], [timestamp])
