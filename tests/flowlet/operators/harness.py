"""Drives one operator without a task."""

from collections.abc import Callable
from itertools import repeat
from typing import Any

import cloudpickle

from flowlet.chain.operator_output import StandaloneOutput
from flowlet.chain.stream_operator import OperatorContext, Output, StreamOperator
from flowlet.keys.exact_keys import key_group_range
from flowlet.operators.source_operator import SourceOperator
from flowlet.records import Chunk, ControlElement
from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend
from flowlet.state.state_backends import KeyedStateBackend
from flowlet.state.state_snapshots import IncrementalSnapshot, KeyedStateSnapshot
from flowlet.testing.manual_processing_time_service import TestProcessingTimeService
from flowlet.timers.keyed_timer_service import KeyContext, KeyedTimerServiceManager
from tests.flowlet.operators.local_splits import serve_splits

MakeBackend = Callable[[KeyContext, Callable[[], int], range, int], KeyedStateBackend]


class RecordingOutput:
    """An output that keeps the elements that it gets."""

    def __init__(self) -> None:
        self.elements: list[Chunk | ControlElement] = []
        self.sides: dict[str, list[Any]] = {}

    def collect(self, chunk: Chunk) -> None:
        assert chunk.values, "an empty chunk is a call for nothing"
        self.elements.append(chunk)

    def emit_control(self, element: ControlElement) -> None:
        self.elements.append(element)

    def collect_side(self, tag_id: str, chunk: Chunk) -> None:
        assert chunk.values, "an empty chunk is a call for nothing"
        self.sides.setdefault(tag_id, []).extend(chunk.values)

    @property
    def chunks(self) -> list[Chunk]:
        return [element for element in self.elements if isinstance(element, Chunk)]

    @property
    def values(self) -> list[Any]:
        return [value for chunk in self.chunks for value in chunk.values]

    @property
    def timestamps(self) -> list[int | None]:
        return [
            stamp
            for chunk in self.chunks
            for stamp in (repeat(None, len(chunk)) if chunk.timestamps is None else chunk.timestamps)
        ]


def set_up(operator: StreamOperator, ctx: OperatorContext, output: Output) -> None:
    """Give an operator its context, and an output in the place of a chain."""
    operator.setup(ctx, StandaloneOutput(operator.name, output, ctx.counters))


class Harness:
    """An operator between ``set_up`` and ``close``, shipped as a job ships it."""

    def __init__(
        self,
        operator: StreamOperator,
        *,
        subtask: int = 0,
        parallelism: int = 1,
        attempt: int = 0,
        pickled: bool = True,
        output: RecordingOutput | None = None,
        restored: object = None,
        make_backend: MakeBackend = HeapKeyedStateBackend,
    ) -> None:
        self.operator: Any = cloudpickle.loads(cloudpickle.dumps(operator)) if pickled else operator
        self.output = RecordingOutput() if output is None else output
        self.clock = TestProcessingTimeService()
        key_context, key_groups = KeyContext(), key_group_range(128, parallelism, subtask)
        ctx = OperatorContext(
            "task",
            subtask,
            parallelism,
            128,
            operator.name,
            attempt,
            key_context=key_context,
            clock=self.clock,
            timers=KeyedTimerServiceManager(key_context, self.clock, key_groups, 128),
            keyed_state=make_backend(key_context, lambda: 0, key_groups, 128),
        )
        self.keyed_state = ctx.keyed_state_backend
        set_up(self.operator, ctx, self.output)
        if isinstance(restored, KeyedStateSnapshot | IncrementalSnapshot):
            self.keyed_state.restore(restored)
        else:
            self.operator.initialize_state(restored)
        if isinstance(operator, SourceOperator) and isinstance(self.operator, SourceOperator):
            serve_splits(self.operator, operator.source)
        self.operator.open()

    def snapshot(self) -> Any:
        """Return the keyed state, as a checkpoint has it."""
        finish = self.keyed_state.snapshot()
        return None if finish is None else finish()

    def process(self, *values: Any, timestamps: list[int] | None = None) -> None:
        self.operator.process_chunk(Chunk(list(values), timestamps))

    def process_input(self, number: int, *values: Any, timestamps: list[int] | None = None) -> None:
        """Records for one input of several."""
        self.operator.inputs()[number - 1].process_chunk(Chunk(list(values), timestamps))


def results(
    operator: StreamOperator, values: list[Any], *, size: int, timestamps: list[int] | None = None
) -> tuple[list[Any], list[int | None]]:
    """Values and timestamps that come out when the records go in, ``size`` in a chunk, and the input ends."""
    harness = Harness(operator)
    for start in range(0, len(values), size):
        part = slice(start, start + size)
        harness.process(*values[part], timestamps=None if timestamps is None else timestamps[part])
    harness.operator.finish()
    harness.operator.close()
    return harness.output.values, harness.output.timestamps
