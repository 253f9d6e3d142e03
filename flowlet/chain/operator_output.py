"""The ways from one operator of a chain to the next ones.

What an operator emits goes to consumers of two kinds: chained operators that take records one by one, whose statements are written into the
loop of the operator; and chunking outputs, behind which chunks go on.

Hot path: per record what ``write`` wrote; per chunk one call of ``collect``.

Side:       task.
Invariants: consumers get a record in the order in which they were added, each with all that is behind it, before the operator emits the
            next one.  Chained operators are handed the very object, as PyFlink's Python operators are.
Source:     Flink ``ChainingOutput``, ``BroadcastingOutputCollector``, ``CountingOutput``, ``WatermarkGaugeExposingOutput``.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flowlet.chain.chunking_output import ChunkingOutput
from flowlet.chain.keyed_consumer import KeyedConsumer
from flowlet.chain.loop_code import LoopCode
from flowlet.chain.record_loop import LoopEnd, RecordLoop, write_into
from flowlet.chain.stream_operator import EdgeOutput, OperatorCounters, Output, StreamOperator
from flowlet.records import MIN_TIMESTAMP, Chunk, LatencyMarker, Watermark, WatermarkStatus


class ChainedConsumer:
    """A chained operator that takes records one by one.

    Args:
        operator: the operator.
        output: where its results go.
        counters: of the operator.
    """

    def __init__(self, operator: StreamOperator, output: "OperatorOutput", counters: OperatorCounters) -> None:
        self.operator = operator
        self.output = output
        self.counters = counters
        self.emit_watermark = operator.process_watermark
        self.emit_watermark_status = operator.process_watermark_status
        self.emit_latency_marker = operator.process_latency_marker

    def __repr__(self) -> str:
        return f"<ChainedConsumer {self.operator!r}>"

    def write(self, code: LoopCode, record: str, timestamp: str | None) -> None:
        """The statements that process the record in a variable."""
        write_into(self.operator, self.loop_ends, code, record, timestamp, None)

    @property
    def loop_ends(self) -> list[LoopEnd]:
        """What runs of the loop end in."""
        return self.output.loop_ends


Consumer = ChainedConsumer | KeyedConsumer | ChunkingOutput


class OperatorOutput:
    """What an operator emits into: counts, sorts by side output, and remembers the watermark.

    Threading: task thread; ``current_watermark`` anywhere, one watermark stale.

    Args:
        name: of the operator, for the text of loops.
        main: the consumers of the main output.
        sides: those of each side output that has any.
        counters: of the operator; each record is counted once, however many consumers there are.
    """

    def __init__(self, name: str, main: Sequence[Consumer], sides: Mapping[str, Sequence[Consumer]], counters: OperatorCounters) -> None:
        self._main = _Way(name, main, counters)
        self._sides = {tag_id: _Way(f"{name}, side output {tag_id}", consumers, counters) for tag_id, consumers in sides.items()}
        self._all: list[Consumer] = [*main, *(consumer for consumers in sides.values() for consumer in consumers)]
        self.loop_ends: list[LoopEnd] = [end for way in (self._main, *self._sides.values()) for end in way.loop_ends]
        self.current_watermark = MIN_TIMESTAMP

    def __repr__(self) -> str:
        return f"<OperatorOutput at {self.current_watermark}: {self._all!r}>"

    # ---------------------------------------------------------------- written into loops

    def write(self, code: LoopCode, record: str, timestamp: str | None, *, count: str | None = None) -> None:
        """The statements that emit the record in a variable.

        Args:
            code: of the loop.
            record: the variable.
            timestamp: the variable with its timestamp; None: the records of this loop have none.
            count: how often the statements will have run when the loop ends, as an expression; None: nobody knows.
        """
        self._main.write(code, record, timestamp, count)

    def write_side(self, code: LoopCode, tag_id: str, record: str, timestamp: str | None) -> None:
        """The statement that emits the record in a variable to the side output whose id is in a variable."""
        code.line(f"{code.bind(self.emit_side, 'emit_side')}({tag_id}, {record}, {timestamp})")

    def write_limit(self, code: LoopCode) -> None:
        """The statements at the end of an inner loop that may emit any number of records."""
        for end in self._main.loop_ends:
            end.write_limit(code)

    def emit_side(self, tag_id: str, record: Any, timestamp: int | None) -> None:
        """Emit one record to a side output; nothing if nobody reads it."""
        way = self._sides.get(tag_id)
        if way is not None:
            way.emit((record,), None if timestamp is None else (timestamp,), 1)

    # ---------------------------------------------------------------- called by operators

    def collect(self, chunk: Chunk) -> None:
        """Emit records; takes over the chunk."""
        self._main.collect(chunk)

    def collect_side(self, tag_id: str, chunk: Chunk) -> None:
        """Emit records to a side output; nothing if nobody reads it."""
        way = self._sides.get(tag_id)
        if way is not None:
            way.collect(chunk)

    def collect_each(self, records: Iterable[Any], timestamps: Iterable[int] | None, num_records: int) -> None:
        """Emit records that are made one by one: the next one, or its timestamp, is asked for when the last one is through."""
        self._main.emit(records, timestamps, num_records)

    def takes_whole(self, chunk: Chunk) -> bool:
        """Whether nothing behind looks at single records."""
        return self._main.takes_whole(chunk)

    def drain(self) -> None:
        """Pass on what waits."""
        for end in self.loop_ends:
            end.drain()

    def emit_watermark(self, watermark: Watermark) -> None:
        """To every consumer of any output."""
        self.current_watermark = watermark.timestamp
        for consumer in self._all:
            consumer.emit_watermark(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """To every consumer of any output."""
        for consumer in self._all:
            consumer.emit_watermark_status(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """To one consumer of any output, by chance."""
        if self._all:
            random.choice(self._all).emit_latency_marker(marker)  # noqa: S311 - spreads load, protects nothing


class _Way:
    """The main output, or a side output."""

    def __init__(self, name: str, consumers: Sequence[Consumer], counters: OperatorCounters) -> None:
        self._consumers = tuple(consumers)
        self._counters = counters
        self.loop_ends: list[LoopEnd] = []
        for consumer in consumers:
            self.loop_ends += [consumer] if isinstance(consumer, ChunkingOutput) else consumer.loop_ends
        self._loop = RecordLoop(name, self._write_loop, self.loop_ends)

    def _write_loop(self, code: LoopCode, record: str, timestamp: str | None, _key: str | None) -> None:
        self.write(code, record, timestamp, "num_records")

    def write(self, code: LoopCode, record: str, timestamp: str | None, count: str | None) -> None:
        if count is None:
            count = self._write_count(code)
        code.at_end(f"{code.bind(self._counters, 'counters')}.num_records_out += {count}")
        for consumer in self._consumers:
            if not isinstance(consumer, ChunkingOutput):
                code.at_end(f"{code.bind(consumer.counters, 'counters')}.num_records_in += {count}")
                code.counts[id(consumer.operator)] = count
            with code.sharing(record, is_shared=consumer is not self._consumers[-1]):
                consumer.write(code, record, timestamp)

    def _write_count(self, code: LoopCode) -> str:
        count = code.variable("n")
        if len(self._consumers) == 1 and isinstance(self._consumers[0], ChunkingOutput):
            # It counts by itself, per chunk.
            output = code.bind(self._consumers[0], "output")
            code.at_start(f"{count} = {output}.num_emitted")
            code.at_end(f"{output}.drain()")
            return f"{output}.num_emitted - {count}"
        code.at_start(f"{count} = 0")
        code.line(f"{count} += 1")
        return count

    def takes_whole(self, chunk: Chunk) -> bool:
        return all(isinstance(consumer, ChunkingOutput) and consumer.try_whole(chunk) is not None for consumer in self._consumers)

    def collect(self, chunk: Chunk) -> None:
        if not len(chunk):
            return
        wholes = []
        for consumer in self._consumers:
            whole = consumer.try_whole(chunk) if isinstance(consumer, ChunkingOutput) else None
            if whole is None or (len(self._consumers) > 1 and consumer.calls_users):  # type: ignore[union-attr]  # None for the others
                self.emit(chunk.records(), chunk.timestamps, len(chunk))
                return
            wholes.append(whole)
        self._counters.num_records_out += len(chunk)
        for consumer, whole in zip(self._consumers, wholes, strict=True):
            assert isinstance(consumer, ChunkingOutput), "whoever takes it whole"
            consumer.collect(whole if consumer is self._consumers[-1] else whole.copy())

    def emit(self, records: Iterable[Any], timestamps: Iterable[int] | None, num_records: int) -> None:
        self._loop.run(records, timestamps, num_records)


class _SideTarget:
    """One side output of an output that sorts by itself, as an ``EdgeOutput``."""

    def __init__(self, output: Output, tag_id: str) -> None:
        self._output = output
        self._tag_id = tag_id

    def collect(self, chunk: Chunk) -> None:
        self._output.collect_side(self._tag_id, chunk)

    def emit_watermark(self, watermark: Watermark) -> None:
        """The main output passes it on."""

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """The main output passes it on."""

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """The main output passes it on."""


class StandaloneOutput(OperatorOutput):
    """The output of an operator outside of a chain: everything goes to an ``Output`` that takes chunks.

    Args:
        name: of the operator.
        output: takes the chunks of all outputs.
        counters: of the operator.
    """

    def __init__(self, name: str, output: Output, counters: OperatorCounters) -> None:
        super().__init__(name, [ChunkingOutput(output)], {}, counters)
        self._output = output

    def emit_side(self, tag_id: str, record: Any, timestamp: int | None) -> None:
        """Emit one record to any side output."""
        self._way_of(tag_id).emit((record,), None if timestamp is None else (timestamp,), 1)

    def collect_side(self, tag_id: str, chunk: Chunk) -> None:
        """Emit records to any side output."""
        self._way_of(tag_id).collect(chunk)

    def _way_of(self, tag_id: str) -> _Way:
        way = self._sides.get(tag_id)
        if way is None:
            counters = OperatorCounters()  # of nobody
            way = self._sides[tag_id] = _Way(tag_id, [ChunkingOutput(_SideTarget(self._output, tag_id))], counters)
        return way


def output_for(output: EdgeOutput, name: str, counters: OperatorCounters) -> OperatorOutput:
    """What an operator emits into, around any output."""
    return output if isinstance(output, OperatorOutput) else StandaloneOutput(name, output, counters)  # type: ignore[arg-type]
