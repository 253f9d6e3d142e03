"""Tasks that read gates.

``LightTask`` runs a light task where its data arrives: on the loop, in the place of its parked thread.

``WatermarkWatch`` finds inputs that have held a watermark back for long: usually empty partitions without
``with_idleness``.

Side:   task, on the loop's thread while the task's own thread is parked.
Why:    a record that comes alone would wait for the task's thread to wake up, and beside a CPU-bound task also for the
        interpreter's lock (bench: latency).
Rules:  only data is processed on the loop.  Events, mails, errors, the life cycle and all work that may wait are left
        to the task's own thread.  So a task never runs on the loop if it writes to the network, has several gates, or
        has an operator that waits for mails.  A task that takes longer than ``BUDGET_NS`` returns to its own thread,
        for twice as long as the last time.  If it was quick on the loop for at least that long before, the time starts
        again at its minimum: then other work had kept the loop from its core.  If one call of a task took longer than
        ``SLOW_NS``, the task stays on its own thread for good, as do tasks of its vertex in later attempts in this
        process (``SLOW_VERTICES``): it waits or keeps the interpreter's lock, and stopped the network meanwhile.
Units:  nanoseconds of a monotonic clock.
Source: Flink ``OneInputStreamTask``, ``TwoInputStreamTask``, ``MultipleInputStreamTask``.  None for ``LightTask`` and
        ``WatermarkWatch``: in Flink people compare the watermarks of all channels by hand.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import partial
from typing import Final

from flowlet.chain.operator_chain import ChainedOperator, HeadInput, MarkValve
from flowlet.chain.record_slices import RecordSlices
from flowlet.chain.stream_operator import InputStatus, MultipleInputStreamOperator, StreamOperator
from flowlet.checkpoint.task.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.task.checkpointed_input_gate import CheckpointedInputGate
from flowlet.checkpoint.task.input_recovery import InputRecovery
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import BarrierMode
from flowlet.checkpoint.task.snapshots import RecoveredStream
from flowlet.io.input_processor import InputProcessor, MultipleInputProcessor
from flowlet.mailbox.mailbox_processor import MailboxProcessor, Suspension, TaskTimings, WaitKind
from flowlet.records import CompletionMark
from flowlet.sorted_input.external_sorter import ExternalSorter
from flowlet.sorted_input.sorting_input_processor import SortedInput, SortingInputProcessor, TaskInput
from flowlet.task.checkpoint_wiring import checkpointed_gates, keep_in_flight
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import TaskEnvironment
from flowlet.watermarks.combined_watermarks import StatusWatermarkValve
from netstack.gate.single_input_gate import SingleInputGate
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.partition.channel_state import InputChannelInfo

BUDGET_NS: Final = 1_000_000  # how long a task may delay the loop's other work, and the network.  Not measured.
# Far longer than the kernel keeps the core from the loop, even beside busy tasks.  Not measured.
SLOW_NS: Final = 50_000_000
_FIRST_PAUSE_NS: Final = 1_000_000_000
_MAX_PAUSE_NS: Final = 1_000_000_000_000
_NEVER_NS: Final = 2**63
_MAX_SLOW_VERTICES: Final = 10_000


SLOW_VERTICES: Final[dict[tuple[str, str], None]] = {}
"""The vertices of this process that once stopped the network, by job, the oldest first; a restarted job would do it
again.  The loop thread adds, task threads read; single operations of a dictionary.
"""


def add_slow_vertex(vertex: tuple[str, str]) -> None:
    """Remember a vertex, and forget the oldest one if there are too many."""
    if len(SLOW_VERTICES) >= _MAX_SLOW_VERTICES:
        del SLOW_VERTICES[next(iter(SLOW_VERTICES))]
    SLOW_VERTICES[vertex] = None


@dataclass(slots=True, eq=False)
class LightTask:
    """Runs one task in slices; ``try_run`` works on the loop's thread and returns False on any other.

    Args:
        task: the light task.
        gate: its only gate.
        process_one: processes one buffer of the gate.
        is_loop_thread: whether the calling thread is the loop's.
        clock_ns: the task's.
    """

    task: "GateFedStreamTask"
    gate: CheckpointedInputGate | SingleInputGate
    process_one: Callable[[], object]
    is_loop_thread: Callable[[], bool]
    clock_ns: Callable[[], int]
    _end_ns: int = field(init=False, default=0)  # Loop thread only: the end of the present slice.
    # Loop thread only: until then the task stays on its own thread, and how long it last stayed there.
    _is_heavy_until_ns: int = field(init=False, default=0)
    _pause_ns: int = field(init=False, default=0)

    def __repr__(self) -> str:
        if self._is_heavy_until_ns == _NEVER_NS:
            return "<LightTask, on its own thread for good>"
        return f"<LightTask, the last time {self._pause_ns / 1e9:g} s on its own thread>"

    def try_run(self, suspension: Suspension) -> bool:
        """Process the data that arrived, instead of resuming ``suspension``.

        False: the task's own thread must do it.
        """
        # A producer's thread must not run its consumer: its own work, and its lock order, would wait for that.
        if not self.is_loop_thread():
            return False
        now_ns = self.clock_ns()
        if now_ns < self._is_heavy_until_ns:
            return False
        self._end_ns = now_ns + BUDGET_NS
        return self.task.mailbox_processor.try_run_parked(suspension, self._run, now_ns)

    def _run(self, controller: MailboxProcessor) -> None:
        gate, clock_ns, end_ns = self.gate, self.clock_ns, self._end_ns
        mailbox = self.task.mailbox
        if not gate.next_is_data:
            return  # an event or an error is next: left to the task's own thread
        now_ns = end_ns - BUDGET_NS
        while True:
            self.process_one()
            began_ns, now_ns = now_ns, clock_ns()
            if now_ns > end_ns:
                self._go_back(began_ns, now_ns)
                return
            # Mails belong to the task's thread: a barrier's trigger or a cancellation must not wait for more data.
            if mailbox.has_mail:
                return
            if not gate.next_is_data:
                break
        self.task._wait_for_input(controller)

    def _go_back(self, began_ns: int, now_ns: int) -> None:
        if now_ns - began_ns > SLOW_NS:
            self._is_heavy_until_ns = _NEVER_NS
            self.task._stood_in_the_way()
            return
        quick_ns = now_ns - self._is_heavy_until_ns
        self._pause_ns = _FIRST_PAUSE_NS if quick_ns >= self._pause_ns else min(2 * self._pause_ns, _MAX_PAUSE_NS)
        self._is_heavy_until_ns = now_ns + self._pause_ns


def can_be_light(operators: Sequence[StreamOperator], *, num_gates: int, num_outputs: int) -> bool:
    """Whether no operator or output of the task may wait while it processes data."""
    return num_gates == 1 and not num_outputs and not any(operator.waits for operator in operators)


STALL_NS: Final = 60_000_000_000  # not measured


class WatermarkWatch:
    """Watches one valve; the watermark that it reads may be stale by one."""

    def __init__(self, valve: StatusWatermarkValve, clock_ns: Callable[[], int]) -> None:
        self._valve = valve
        self._clock_ns = clock_ns
        self._watermark = valve.last_output  # at the last call, like the fields below
        self._moved_ns = clock_ns()

    def __repr__(self) -> str:
        return f"<WatermarkWatch of {self._valve!r}>"

    def held_back_by(self) -> list[int]:
        """The channels that held the watermark back for the last minute while others were ahead.

        The minute counts from the last call at which the watermark had moved, or was not held back.
        """
        now_ns, watermark = self._clock_ns(), self._valve.last_output
        if watermark != self._watermark or not self._valve.is_held_back:
            self._watermark, self._moved_ns = watermark, now_ns
        return self._valve.held_back_by() if now_ns - self._moved_ns >= STALL_NS else []


_log = LogLines(__name__)

# A mail, a cancellation or a flush waits for at most this many buffers.  Not measured.
MAX_BUFFERS_PER_ACTION = 8
MAX_INPUTS: Final = 63  # Flink's: an input selection has one bit for each


class GateFedStreamTask(StreamTask):
    """Feeds all gates to the inputs of its head; several gates of one input are a union.

    Raises:
        ValueError: the head has several inputs, of which one has no gate, or more than 63.
    """

    def __init__(
        self, environment: TaskEnvironment, chain: list[ChainedOperator], *, timings: TaskTimings | None = None
    ) -> None:
        super().__init__(environment, chain, timings=timings)
        self._checkpointed = (
            {}
            if self.checkpoints is None
            else checkpointed_gates(environment, self.checkpoints, self.mailbox_processor)
        )
        self._readers: list[tuple[InputProcessor, list[SingleInputGate]]] = []
        # Each with the function that names its channels for people.
        self._watches: list[tuple[Callable[[int], str], WatermarkWatch]] = []
        self._marks = MarkValve(sum(gate.num_channels for gate in environment.gates))  # of all inputs together
        self._num_mark_channels = 0  # those that have an input processor
        self._light: LightTask | None = None
        # Written by the task thread, read by threads that complete a gate's future.
        self._input_suspension: Suspension | None = None
        self._input = self._create_input()

    def _create_input(self) -> InputProcessor | MultipleInputProcessor:
        head = self._chain.head
        inputs = self._chain.head_inputs
        gates = self.environment.gates_by_input() if len(inputs) > 1 else [self.environment.gates]
        if len(gates) != len(inputs) or not all(gates):
            raise ValueError(
                f"{self.name}: {head!r} has {len(inputs)} inputs, but the gates are for {[len(each) for each in gates]}"
            )
        if head.sorted_inputs or head.inputs_read_last:
            return self._sorting_processor(gates)
        if len(inputs) > MAX_INPUTS:
            raise ValueError(f"an operator has 1 to {MAX_INPUTS} inputs, got {len(inputs)}")
        processors = [self._input_processor(index + 1, gates[index], each) for index, each in enumerate(inputs)]
        if isinstance(head, MultipleInputStreamOperator):
            self._watch(lambda index: f"input {index + 1}", head.combined_watermark)
        if len(inputs) > 1:
            return MultipleInputProcessor(processors)
        self._light = self._light_task(processors[0])
        return processors[0]

    def _sorting_processor(self, gates: list[list[SingleInputGate]]) -> SortingInputProcessor:
        """The processor of all inputs of a head in a BATCH job, which sorts inputs or reads some last; ``gates``: by
        input.
        """
        batch, head = self.environment.batch, self._chain.head
        assert batch is not None, "only operators of BATCH jobs want an order"
        inputs: list[TaskInput] = []
        selectors = head.sorted_inputs or (None,) * len(gates)
        budget_bytes = batch.sort_memory_bytes // max(1, sum(each is not None for each in selectors))
        for index, (selector, head_input) in enumerate(zip(selectors, self._chain.head_inputs, strict=True)):
            collected, end = None, partial(self._end_input, index + 1)
            if selector is not None:
                sorter = ExternalSorter(budget_bytes, limits=self.environment.limits, name=self.name)
                collected = SortedInput(sorter, selector, head_input, self._attention)
            processor = self._input_processor(index + 1, gates[index], head_input, collected=collected)
            inputs.append(TaskInput(processor, head_input, end, collected, is_last=index in head.inputs_read_last))
        slices = RecordSlices[int](self._timings.working_ns, cpu_ns=self._timings.cpu_ns, cuts=self._chain.cuts_chunks)
        return SortingInputProcessor(
            inputs, head.end_keys if batch.ends_keys else None, partial(_must_end_singly, head), slices
        )

    def _input_processor(
        self, number: int, gates: list[SingleInputGate], head: HeadInput, *, collected: SortedInput | None = None
    ) -> InputProcessor:
        """The processor of input ``number``, from 1; ``collected``: gets its elements instead of the head."""
        processor = InputProcessor(
            [self._checkpointed.get(gate, gate) for gate in gates],
            head if collected is None else collected,
            self.name,
            # A head that holds records hears of its end from the chain, when the task has drained it.
            on_end=partial(self._end_input, number)
            if collected is None and not self._chain.head.holds_records
            else (lambda: None),
            on_mark=partial(self._process_mark, self._num_mark_channels),
            are_checkpointed=bool(self._checkpointed),
            limits=self.environment.limits,
            takes_late_data=self._chain.head.takes_late_data,
            slices=RecordSlices(lambda: 0, cuts=False) if collected is not None else self._new_slices(),
        )
        self._num_mark_channels += sum(gate.num_channels for gate in gates)
        for position, gate in enumerate(gates):
            if gate in self._checkpointed:
                self._checkpointed[gate].reads_ahead(partial(processor.has_polled, position))
        self._readers.append((processor, gates))
        self._watch(lambda channel: f"input {number}, channel {channel}", processor.valve)
        return processor

    def _end_input(self, number: int) -> None:
        self._complete_watermark()
        self._chain.head.end_input(number)

    def _process_mark(self, first_channel: int, channel: int, mark: CompletionMark | None) -> None:
        channel += first_channel
        passed = self._marks.end(channel) if mark is None else self._marks.receive(channel, mark)
        if passed is not None:
            self._chain.process_control(passed)

    def _keep_in_flight_input(self, writer: InMemoryChannelStateWriter, checkpoint_id: int) -> None:
        for processor, gates in self._readers:
            for position, gate in enumerate(gates):
                checkpointed, index = self._checkpointed[gate], self.environment.gates.index(gate)
                for channel in range(gate.num_channels):
                    pieces = [*processor.in_flight(position, channel), *checkpointed.kept_in_flight(channel)]
                    keep_in_flight(writer, checkpoint_id, InputChannelInfo(index, channel), pieces)

    def _create_recovery(self, streams: list[RecoveredStream]) -> InputRecovery:
        environment = self.environment
        targets = {
            environment.gates.index(gate): (reader, place)
            for reader, gates in self._readers
            for place, gate in enumerate(gates)
        }
        return InputRecovery(streams, targets.__getitem__, self.name, environment.limits, self._inner_input)

    def _watch(self, name_of: Callable[[int], str], valve: StatusWatermarkValve) -> None:
        self._watches.append((name_of, WatermarkWatch(valve, self._timings.now_ns)))

    def _closers(self, *, mailbox: bool = True) -> Iterator[Callable[[], None]]:
        yield self._input.close
        for gate in self._checkpointed.values():
            yield gate.close  # closes the inner gate a second time, which does nothing
        yield from super()._closers(mailbox=mailbox)

    def _process_input(self) -> InputStatus:
        if not self._holders:
            return self._input.process_input(MAX_BUFFERS_PER_ACTION, self._should_stop)
        # Before each buffer the task looks whether its operators have room.  Elements that were read already go in
        # without room: a barrier may be behind them.
        should_stop = self._should_stop
        if isinstance(self._input, SortingInputProcessor):
            should_stop = lambda: self._is_full or self._should_stop()  # noqa: E731 - named for both inputs
        return self._input.process_input(0 if self._input.has_rest else 1, should_stop)

    @property
    def _has_event(self) -> bool:
        return self._input.has_rest or self._input.next_is_event

    def _resume_for_events(self, suspension: Suspension) -> None:
        self._input_suspension = suspension
        if not self._input.is_available:
            self._input.watch(self._resume_input)

    def _process_events(self) -> InputStatus:
        return self._input.process_events()

    def _wait_for_input(self, controller: MailboxProcessor) -> None:
        # Set before the futures are read: a future that completes meanwhile is either seen as done, or its thread finds
        # the suspension here.
        self._input_suspension = controller.suspend_default_action(WaitKind.IDLE, self._input.waiting_for)
        self._input.watch(self._resume_input)

    def _resume_input(self) -> None:
        suspension = self._input_suspension
        if suspension is not None and (self._light is None or not self._light.try_run(suspension)):
            suspension.resume()

    def _advance_to_end_of_event_time(self) -> None:
        self._input.advance_to_end_of_event_time()

    def _watermark_held_back_by(self) -> list[str]:
        return [name_of(index) for name_of, watch in self._watches for index in watch.held_back_by()]

    def _current_input_watermark(self) -> int:
        return self._input.current_watermark

    def _light_task(self, processor: InputProcessor) -> LightTask | None:
        """The ``LightTask`` that runs the task on the loop; None: the task may not run there."""
        environment = self.environment
        is_loop_thread = environment.is_loop_thread
        gates = environment.gates
        config = environment.checkpointing
        may_be_overtaken = config is not None and config.mode in (BarrierMode.ALTERNATING, BarrierMode.UNALIGNED)
        if (
            is_loop_thread is None
            or may_be_overtaken
            or (environment.job_id, environment.vertex_id) in SLOW_VERTICES
            or not can_be_light(self._chain.operators, num_gates=len(gates), num_outputs=len(self._partitions))
        ):
            return None
        gate = self._checkpointed.get(gates[0], gates[0])
        process_one = partial(processor.process_input, 1, lambda: True)
        return LightTask(self, gate, process_one, is_loop_thread, self._timings.now_ns)

    def _stood_in_the_way(self) -> None:
        """Remember the vertex, and warn, after a call on the loop that was slow."""
        environment = self.environment
        add_slow_vertex((environment.job_id, environment.vertex_id))
        _log.warning(
            "a function was slow on the loop, and stopped the network meanwhile; the task stays on its own thread from "
            "now on",
            job=environment.job_name,
            task=environment.task_name,
            subtask=environment.subtask,
        )


def _must_end_singly(head: StreamOperator) -> bool:
    """Whether each single key must be ended before the next one begins, the records of all inputs by timestamp."""
    if head.ends_keys_singly is not None:
        return head.ends_keys_singly
    if sum(each is not None for each in head.sorted_inputs) > 1:
        return True
    timers, states = head.ctx.timers, head.ctx.keyed_state
    return (timers is not None and timers.is_used) or (states is not None and states.is_used)
