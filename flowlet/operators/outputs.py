"""The ways from one operator of a chain to the next ones.

Hot path, per chunk: two plain calls and two additions from one operator to the next; where object reuse is off, see ``copying``.

Side:       task.
Invariants: a chunk has one owner; with object reuse off, no two operators that could tell share a record.
Source:     Flink ``ChainingOutput``, ``CopyingChainingOutput``, ``BroadcastingOutputCollector``, ``CopyingBroadcastingOutputCollector``,
            ``CountingOutput``, ``WatermarkGaugeExposingOutput``.  Side outputs are told apart where an operator emits, so an output behind
            a tag never sees a record of the main one.
Rules:      the inverse rule of Flink's broadcasting outputs: who reads through copies of its own can be given the same chunk, so the
            copying variant is the one for object reuse.
"""

import random
from collections.abc import Mapping, Sequence
from typing import ClassVar

from flowlet.operators.base import EdgeOutput, OperatorCounters, StreamOperator
from flowlet.operators.copying import copy_chunk
from flowlet.records import MIN_TIMESTAMP, Chunk, LatencyMarker, Watermark, WatermarkStatus


class ChainingOutput:
    """The way into a chained operator, which gets the very records."""

    copies: ClassVar[bool] = False

    __slots__ = ("_counters", "_operator", "_process", "emit_latency_marker", "emit_watermark", "emit_watermark_status")

    def __init__(self, operator: StreamOperator, counters: OperatorCounters) -> None:
        self._operator = operator
        self._process = operator.process_chunk
        self._counters = counters
        self.emit_watermark = operator.process_watermark
        self.emit_watermark_status = operator.process_watermark_status
        self.emit_latency_marker = operator.process_latency_marker

    def __repr__(self) -> str:
        return f"<{type(self).__name__} into {self._operator!r}>"

    def collect(self, chunk: Chunk) -> None:
        """Count and process."""
        self._counters.num_records_in += len(chunk)
        self._process(chunk)


class CopyingChainingOutput(ChainingOutput):
    """The way into a chained operator, which gets copies."""

    copies: ClassVar[bool] = True

    __slots__ = ()

    def collect(self, chunk: Chunk) -> None:
        """Count, copy and process."""
        self._counters.num_records_in += len(chunk)
        self._process(copy_chunk(chunk))


class BroadcastingOutput:
    """Several outputs, or none: each gets the same chunk, so all but the last one must copy it."""

    __slots__ = ("_outputs",)

    def __init__(self, outputs: Sequence[EdgeOutput]) -> None:
        self._outputs = tuple(outputs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self._outputs!r}>"

    def collect(self, chunk: Chunk) -> None:
        """To each, in order."""
        for output in self._outputs:
            output.collect(chunk)

    def emit_watermark(self, watermark: Watermark) -> None:
        """To each."""
        for output in self._outputs:
            output.emit_watermark(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """To each."""
        for output in self._outputs:
            output.emit_watermark_status(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """To one of them, by chance."""
        if self._outputs:
            random.choice(self._outputs).emit_latency_marker(marker)  # noqa: S311 - spreads load, protects nothing


class CopyingBroadcastingOutput(BroadcastingOutput):
    """Several outputs: every output gets a chunk of its own, the last one the original; the records are shared."""

    __slots__ = ()

    def collect(self, chunk: Chunk) -> None:
        """To each, in order."""
        for output in self._outputs[:-1]:
            output.collect(chunk.copy())
        for output in self._outputs[-1:]:
            output.collect(chunk)


class OperatorOutput:
    """What an operator emits into: counts, sorts by side output, and remembers the watermark.

    Threading: task thread; ``current_watermark`` anywhere, one watermark stale.

    Args:
        main: the consumers of the main output.
        sides: those of each side output that has any.
        counters: of the operator; each record is counted once, however many consumers there are.
    """

    __slots__ = ("_all", "_collect", "_counters", "_sides", "current_watermark")

    def __init__(self, main: Sequence[EdgeOutput], sides: Mapping[str, Sequence[EdgeOutput]], counters: OperatorCounters) -> None:
        self._collect = _joined(main).collect
        self._sides = {tag_id: _joined(outputs).collect for tag_id, outputs in sides.items()}
        self._all = BroadcastingOutput([*main, *(output for outputs in sides.values() for output in outputs)])
        self._counters = counters
        self.current_watermark = MIN_TIMESTAMP

    def __repr__(self) -> str:
        return f"<OperatorOutput at {self.current_watermark}: {self._all!r}>"

    def collect(self, chunk: Chunk) -> None:
        """Count and pass on."""
        self._counters.num_records_out += len(chunk)
        self._collect(chunk)

    def collect_side(self, tag_id: str, chunk: Chunk) -> None:
        """Count and pass on; forget what nobody reads."""
        collect = self._sides.get(tag_id)
        if collect is not None:
            self._counters.num_records_out += len(chunk)
            collect(chunk)

    def emit_watermark(self, watermark: Watermark) -> None:
        """To every consumer of any output."""
        self.current_watermark = watermark.timestamp
        self._all.emit_watermark(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """To every consumer of any output."""
        self._all.emit_watermark_status(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """To one consumer of any output."""
        self._all.emit_latency_marker(marker)


def _joined(outputs: Sequence[EdgeOutput]) -> EdgeOutput:
    if len(outputs) == 1:
        return outputs[0]
    if all(getattr(output, "copies", False) for output in outputs[:-1]):
        return BroadcastingOutput(outputs)
    return CopyingBroadcastingOutput(outputs)
