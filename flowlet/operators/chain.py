"""The operators of one task, wired to each other.

Hot path, per chunk: two plain calls and two additions from one operator to the next.

Side:       task.
Invariants: an operator's consumers come after it in the chain; every operator that was opened is closed, whatever the others raise.
Source:     Flink ``OperatorChain``, ``ChainingOutput``, ``BroadcastingOutputCollector``; open from the last to the first, finish from the
            first to the last.  Chained operators see the same objects (Flink's object reuse); between tasks everything is serialized.
Absent:     readers of side outputs, snapshots.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flowlet.operators.base import EdgeOutput, OperatorContext, OperatorCounters, StreamOperator
from flowlet.records import Chunk, LatencyMarker, Watermark, WatermarkStatus


@dataclass(frozen=True, slots=True)
class ChainedOperator:
    """An operator and the index in the chain of the one that it reads; -1 for the head."""

    operator: StreamOperator
    parent: int = -1


class ChainingOutput:
    """The way into a chained operator."""

    __slots__ = ("_counters", "_operator", "emit_latency_marker", "emit_watermark", "emit_watermark_status")

    def __init__(self, operator: StreamOperator, counters: OperatorCounters) -> None:
        self._operator = operator
        self._counters = counters
        self.emit_watermark = operator.process_watermark
        self.emit_watermark_status = operator.process_watermark_status
        self.emit_latency_marker = operator.process_latency_marker

    def collect(self, chunk: Chunk) -> None:
        """Count and process."""
        self._counters.num_records_in += len(chunk.values)
        self._operator.process_chunk(chunk)


class BroadcastingOutput:
    """Several outputs, or none: everything goes to each of them, in order."""

    __slots__ = ("_outputs",)

    def __init__(self, outputs: Sequence[EdgeOutput]) -> None:
        self._outputs = tuple(outputs)

    def collect(self, chunk: Chunk) -> None:
        """Every output gets a chunk of its own; the records are shared."""
        for output in self._outputs[:-1]:
            output.collect(Chunk(chunk.values.copy(), None if chunk.timestamps is None else chunk.timestamps.copy()))
        for output in self._outputs[-1:]:
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


class CountingOutput:
    """Counts what an operator emits; each record once, however many consumers there are."""

    __slots__ = ("_collect", "_counters", "emit_latency_marker", "emit_watermark", "emit_watermark_status")

    def __init__(self, output: EdgeOutput, counters: OperatorCounters) -> None:
        self._counters = counters
        self._collect = output.collect
        self.emit_watermark = output.emit_watermark
        self.emit_watermark_status = output.emit_watermark_status
        self.emit_latency_marker = output.emit_latency_marker

    def collect(self, chunk: Chunk) -> None:
        """Count and pass on."""
        self._counters.num_records_out += len(chunk.values)
        self._collect(chunk)

    def collect_side(self, tag_id: str, chunk: Chunk) -> None:
        """Count; nobody reads side outputs yet."""
        self._counters.num_records_out += len(chunk.values)


class OperatorChain:
    """Runs the operators of one task.

    Threading: task thread; ``num_records_in`` and ``num_records_out`` anywhere, one chunk stale.
    Life cycle: ``open`` -> ``process_*`` -> ``finish`` -> ``close``; ``close`` in every state, any number of times.

    Args:
        chained: the operators, head first, each behind the one it reads.
        edge_outputs: the outputs of the task, by the index of the operator that feeds them.
        context_factory: makes the context of an operator from its index and name.
    """

    def __init__(
        self,
        chained: Sequence[ChainedOperator],
        edge_outputs: Mapping[int, Sequence[EdgeOutput]],
        context_factory: Callable[[int, str], OperatorContext],
    ) -> None:
        self.operators = [item.operator for item in chained]
        self._contexts = [context_factory(index, operator.name) for index, operator in enumerate(self.operators)]
        self._with_edges = sorted(edge_outputs)
        self._opened: list[StreamOperator] = []
        for index, operator in enumerate(self.operators):
            counters = self._contexts[index].counters
            children = [child for child, item in enumerate(chained) if item.parent == index and child > 0]
            outputs: list[EdgeOutput] = [ChainingOutput(self.operators[child], self._contexts[child].counters) for child in children]
            outputs.extend(edge_outputs.get(index, ()))
            target = outputs[0] if len(outputs) == 1 else BroadcastingOutput(outputs)
            operator.setup(self._contexts[index], CountingOutput(target, counters))
        self._head = ChainingOutput(self.operators[0], self._contexts[0].counters)
        self.process_chunk = self._head.collect
        self.process_watermark = self.operators[0].process_watermark
        self.process_watermark_status = self.operators[0].process_watermark_status
        self.process_latency_marker = self.operators[0].process_latency_marker

    def __repr__(self) -> str:
        return f"<OperatorChain {' -> '.join(operator.name for operator in self.operators)}, {len(self._opened)} open>"

    @property
    def head(self) -> StreamOperator:
        """The operator that reads the task's input, or is its source."""
        return self.operators[0]

    @property
    def num_records_in(self) -> int:
        """Records that entered the head; 0 for a source."""
        return self._contexts[0].counters.num_records_in

    @property
    def num_records_out(self) -> int:
        """Records that left the task, each once however many edges its operator feeds."""
        return sum(self._contexts[index].counters.num_records_out for index in self._with_edges)

    def counters(self) -> dict[int, OperatorCounters]:
        """What each operator counted, by its index in the chain."""
        return {index: ctx.counters for index, ctx in enumerate(self._contexts)}

    def open(self) -> None:
        """Open the operators, last to first: nobody emits into one that is not open."""
        for operator in reversed(self.operators):
            # Before the call: what a failing open() took must be given back too.
            self._opened.append(operator)
            operator.open()

    def finish(self) -> None:
        """The input ended: let the operators emit what is left, first to last."""
        for operator in self.operators:
            operator.finish()

    def close(self) -> None:
        """Close what was opened, first to last.

        Raises:
            Exception: the first one that an operator raised, with notes about the others; all are closed nevertheless.
        """
        operators, self._opened = self._opened[::-1], []
        _run_all(operator.close for operator in operators)


def _run_all(steps: Iterable[Callable[[], None]]) -> None:
    first: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - raised below, after the other steps
            if first is None:
                first = error
            else:
                first.add_note(f"then {type(error).__name__}: {error}")
    if first is not None:
        raise first
