"""Drives a chain of operators without a task."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from flowlet.chain.chunking_output import ChunkingOutput, KeyExtractor
from flowlet.chain.loop_code import LoopCode, RecordLoop
from flowlet.chain.operator_chain import ChainedOperator, OperatorChain
from flowlet.chain.operator_output import OperatorOutput
from flowlet.chain.stream_operator import EdgeOutput, OperatorContext, OperatorCounters, StreamOperator
from flowlet.records import Chunk
from flowlet.timers.keyed_timer_service import KeyContext
from tests.flowlet.operators.fake_time import FakeClock, FakeTimers
from tests.flowlet.operators.harness import RecordingOutput


class KeyedRecordingOutput(RecordingOutput):
    """Keeps what it gets, as the writer of an edge by key would: pickled records as they are.

    Args:
        keys: takes the keys; None: nobody needs any.
    """

    takes_pickled_records = True

    def __init__(self, keys: KeyExtractor | None = None) -> None:
        super().__init__()
        self.keys = keys


class ChainHarness:
    """Operators one behind the other, open, with one output behind the last.

    Args:
        operators: head first.
        output: keeps the results of the last operator.
        subtask: the number that errors name.
    """

    def __init__(self, *operators: StreamOperator, output: RecordingOutput | None = None, subtask: int = 0) -> None:
        self.output = RecordingOutput() if output is None else output
        self.clock = FakeClock()
        self._subtask = subtask
        chained = [ChainedOperator(operator, index - 1) for index, operator in enumerate(operators)]
        self.chain = OperatorChain(chained, {(len(operators) - 1, None): [self.output]}, self._context)
        self.chain.open()

    def _context(self, index: int, name: str) -> OperatorContext:
        key_context = KeyContext()
        timers = FakeTimers(self.clock, key_context)
        return OperatorContext(
            "task",
            self._subtask,
            4,
            128,
            name,
            chain_index=index,
            key_context=key_context,
            clock=self.clock,
            timers=cast(Any, timers),
        )

    def process(self, *values: Any, timestamps: list[int] | None = None) -> None:
        self.chain.process_chunk(Chunk(list(values), timestamps))

    @property
    def counts(self) -> list[tuple[int, int]]:
        """Records in and out, operator by operator."""
        return [(each.num_records_in, each.num_records_out) for each in (ctx.counters for ctx in self.chain.contexts)]


class Emission:
    """The loop that emits what it is given, and nothing else.

    Args:
        targets: what is emitted into, each through a chunking output with the keys that it wants.
    """

    def __init__(self, *targets: EdgeOutput) -> None:
        self.loop_ends = [ChunkingOutput(target, getattr(target, "keys", None)) for target in targets]
        self.counters = OperatorCounters()
        self.output = OperatorOutput("test", self.loop_ends, {}, self.counters)

    def run(self, records: Any, timestamps: Sequence[int] | None = None) -> None:
        """Emit records, as an operator does that makes them one by one."""
        self.output.collect_each(records, timestamps, 0)


def loop_of(write: Callable[[LoopCode, str, str | None, str | None], None], *loop_ends: ChunkingOutput) -> RecordLoop:
    return RecordLoop("test", write, list(loop_ends))
