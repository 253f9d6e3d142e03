"""Drives a chain of operators without a task."""

from collections.abc import Callable, Sequence
from typing import Any

from flowlet.chain.chunking_output import ChunkingOutput, KeyExtractor
from flowlet.chain.loop_code import LoopCode, RecordLoop
from flowlet.chain.operator_chain import ChainedOperator, OperatorChain
from flowlet.chain.operator_output import OperatorOutput
from flowlet.chain.stream_operator import EdgeOutput, OperatorContext, OperatorCounters, StreamOperator
from flowlet.records import Chunk
from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend
from flowlet.testing.manual_processing_time_service import TestProcessingTimeService
from flowlet.timers.keyed_timer_service import KeyContext, KeyedTimerServiceManager
from tests.flowlet.operators.harness import MakeBackend, RecordingOutput


class KeyedRecordingOutput(RecordingOutput):
    """Keeps what it gets, as the writer of an edge by key would: pickled records as they are.

    Args:
        keys: takes the keys; None: nobody needs any.
    """

    takes_pickled_records = True

    def __init__(self, keys: KeyExtractor | None = None) -> None:
        super().__init__()
        self.keys = keys

    def collect(self, chunk: Chunk) -> None:
        super().collect(chunk if self.keys is None else self.keys.keyed(chunk))


class ChainHarness:
    """Operators in one chain, open, with an output behind some of them.

    Args:
        operators: head first; each behind the one before it, unless it says behind which one.
        outputs: the operators that have an output; None: the last one.
        subtask: the number that errors name.
        restored: keyed state of the last operator.
        make_backend: makes the store of an operator's keyed state.
    """

    def __init__(
        self,
        *operators: StreamOperator | ChainedOperator,
        outputs: tuple[int, ...] | None = None,
        subtask: int = 0,
        restored: Any = None,
        make_backend: MakeBackend = HeapKeyedStateBackend,
    ) -> None:
        self.outputs = {index: RecordingOutput() for index in outputs or (len(operators) - 1,)}
        self.output = self.outputs[max(self.outputs)]
        self._subtask, self._restored, self._make_backend = subtask, restored, make_backend
        chained = [
            each if isinstance(each, ChainedOperator) else ChainedOperator(each, index - 1)
            for index, each in enumerate(operators)
        ]
        self.clock = TestProcessingTimeService()
        self.chain = OperatorChain(
            chained, {(index, None): [output] for index, output in self.outputs.items()}, self._context
        )
        self.chain.open()

    def _context(self, index: int, name: str) -> OperatorContext:
        keys = KeyContext()
        self.backend = self._make_backend(keys, lambda: 0, range(128), 128)
        if self._restored is not None and index == max(self.outputs):
            self.backend.restore(self._restored)
        return OperatorContext(
            "task",
            self._subtask,
            4,
            128,
            name,
            key_context=keys,
            clock=self.clock,
            timers=KeyedTimerServiceManager(keys, self.clock, range(128), 128),
            keyed_state=self.backend,
        )

    def process(self, *values: Any, timestamps: list[int] | None = None) -> None:
        self.chain.process_chunk(Chunk(list(values), timestamps))

    def process_numbers(self, num_records: int) -> None:
        """In runs of forty: through loops that were made before the form of records was known, and after."""
        for start in range(0, num_records, 40):
            self.process(*range(start, start + 40))

    @property
    def values(self) -> list[Any]:
        return self.output.values

    @property
    def counts(self) -> list[tuple[int, int]]:
        return counts_of(self.chain)


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


def emitting(output: RecordingOutput | None = None) -> tuple[Emission, RecordingOutput]:
    """Return a loop that emits into an output, and the output."""
    target = RecordingOutput() if output is None else output
    return Emission(target), target


def chain_of(
    chained: list[ChainedOperator], edges: dict[tuple[int, str | None], list[Any]], *, subtask: int = 0
) -> OperatorChain:
    """Return a chain that is open, with outputs behind its operators."""

    def context(index: int, name: str) -> OperatorContext:
        return OperatorContext("task", subtask, 2, 128, name, clock=TestProcessingTimeService())

    chain = OperatorChain(chained, edges, context)
    chain.open()
    return chain


def counts_of(chain: OperatorChain) -> list[tuple[int, int]]:
    """Return the numbers of records in and out, operator by operator."""
    return [(each.num_records_in, each.num_records_out) for each in (ctx.counters for ctx in chain.contexts)]


def loop_of(write: Callable[[LoopCode, str, str | None, str | None], None], *loop_ends: ChunkingOutput) -> RecordLoop:
    return RecordLoop("test", write, list(loop_ends))
