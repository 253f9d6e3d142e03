"""Three tasks, each twice, on threads: checkpoints under load in every mode, then new tasks that go on from the last
one.

Sources emit ``(key, number)``; a keyed task sums per key and sets an event time timer per key and thousand; sinks keep
the last sum of each key, how many records it had, and which timers fired.

Source: Flink ``EventTimeWindowCheckpointingITCase``, ``UnalignedCheckpointITCase``, ``StateCheckpointedITCase``.
"""

import operator
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from flowlet.chain.stream_operator import StreamOperator
from flowlet.checkpoint.task.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import BarrierMode
from flowlet.checkpoint.task.snapshots import OperatorState, SubtaskState
from flowlet.datastream import KeyedProcessFunction
from flowlet.errors import TaskCancelled
from flowlet.graph.partitioner import KeyGroups
from flowlet.operators.keyed_aggregation_operator import KeyedSumOperator
from flowlet.operators.process_operator import ProcessOperator
from flowlet.operators.source_operator import KeptRecords, PositionWithRest, SourceOperator
from flowlet.operators.source_reader import Source, SourceReader
from flowlet.records import Chunk, Watermark
from flowlet.serde.element_serializer import ElementDeserializer
from flowlet.state.state_snapshots import AGGREGATES, KeyedStateSnapshot
from flowlet.task.source_stream_task import create_stream_task
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import Checkpointing, TaskEnvironment
from netstack.errors import ProducerFailedError
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import Alignment, CheckpointBarrier, CheckpointOptions
from tests.flowlet.checkpoint.task.in_memory_store import InMemoryCheckpointStore
from tests.flowlet.task.local_network import LocalNetwork, Thread, edge
from tests.flowlet.task.local_tasks import chain
from tests.waiting import spin_until

PARALLELISM = 2
NUM_KEYS = 7
CHUNK_RECORDS = 20
BUCKET_MS = 1_000
first = operator.itemgetter(0)
SOURCE_ID, SUM_ID, TIMER_ID, SINK_ID = (letter * 16 for letter in (b"a", b"b", b"c", b"d"))


def key_of(number: int) -> str:
    return f"key {number % NUM_KEYS}"


class Numbers(Source):
    """Counts; number n has the timestamp n.  Ends at ``end``, if there is one."""

    def __init__(self, end: int | None) -> None:
        self.end = end

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        return _Reader(self.end)


class _Reader:
    def __init__(self, end: int | None) -> None:
        self._end = end
        self._next = 0
        self._owes_watermark = False

    def poll_chunk(self) -> Chunk | Watermark | None:
        if self._owes_watermark:
            self._owes_watermark = False
            return Watermark(self._next - 1)
        if self._end is not None and self._next >= self._end:
            return None
        numbers = list(range(self._next, self._next + CHUNK_RECORDS))
        self._next += CHUNK_RECORDS
        self._owes_watermark = True
        return Chunk([(key_of(number), number) for number in numbers], numbers)

    def snapshot_position(self) -> int:
        return self._next

    def restore_position(self, position: int) -> None:
        self._next = position
        self._owes_watermark = True

    def close(self) -> None:
        pass


class Buckets(KeyedProcessFunction):
    """Passes everything on; a timer at the end of each thousand."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        timestamp = ctx.timestamp()
        assert timestamp is not None
        ctx.timer_service().register_event_time_timer((timestamp // BUCKET_MS + 1) * BUCKET_MS)
        yield value

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), "timer", timestamp


class Totals(StreamOperator):
    """The sink."""

    name = "totals"
    operator_id = SINK_ID

    def __init__(self) -> None:
        self.sums: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self.timers: Counter[tuple[str, int]] = Counter()

    def process_chunk(self, chunk: Chunk) -> None:
        for record in chunk.values:
            if record[1] == "timer":
                self.timers[record[0], record[2]] += 1
            else:
                self.counts[record[0]] += 1
                self.sums[record[0]] = max(self.sums.get(record[0], 0), record[1])

    def process_watermark(self, watermark: Watermark) -> None:
        pass

    def snapshot_state(self, checkpoint_id: int) -> object:
        return dict(self.sums), Counter(self.counts), Counter(self.timers)

    def initialize_state(self, state: object | None) -> None:
        if isinstance(state, tuple):
            self.sums, self.counts, self.timers = (each.copy() for each in state)


def named(operator: StreamOperator, operator_id: bytes) -> StreamOperator:
    operator.operator_id = operator_id
    return operator


def start_timer(delay_s: float, call: Callable[[], None]) -> threading.Timer:
    """Start a timer of the real clock: barriers under load time out."""
    timer = threading.Timer(delay_s, call)
    timer.daemon = True
    timer.start()
    return timer


class Job:
    """One attempt of all tasks, and a coordinator that is the test's thread."""

    def __init__(
        self,
        network: LocalNetwork,
        store: InMemoryCheckpointStore,
        mode: BarrierMode | None,
        *,
        end: int | None,
        restored: int | None,
    ) -> None:
        self._network = network
        self.store = store
        self._mode = mode
        self._restored = restored
        self._pool = ThreadPoolExecutor(2)
        self.sinks = [Totals() for _ in range(PARALLELISM)]
        raw, summed = ([network.partition(PARALLELISM, max_buffers=12) for _ in range(PARALLELISM)] for _ in range(2))
        self.tasks: dict[tuple[str, int], StreamTask] = {}
        for number in range(PARALLELISM):
            self._add("source", number, [named(SourceOperator(Numbers(end)), SOURCE_ID)], [], raw[number])
            summing = [named(KeyedSumOperator(first, 1), SUM_ID), named(ProcessOperator(Buckets(), first), TIMER_ID)]
            self._add("sum", number, summing, raw, summed[number])
            self._add("sink", number, [self.sinks[number]], summed, None)
        self._threads = {name: Thread(task.invoke, task.name) for name, task in self.tasks.items()}

    def _add(
        self,
        vertex: str,
        number: int,
        operators: list[StreamOperator],
        inputs: list[ResultPartition],
        output: ResultPartition | None,
    ) -> None:
        gates = [self._network.gate(*inputs, subpartition=number)] if inputs else []
        outputs = [] if output is None else [edge(output, KeyGroups(first), source=len(operators) - 1)]
        environment = self._network.environment(
            f"{vertex} {number}", gates=gates, outputs=outputs, subtask=number, parallelism=PARALLELISM
        )
        environment.checkpointing = self._checkpointing(vertex, number)
        environment.schedule_timer = start_timer
        self.tasks[vertex, number] = create_stream_task(_of_vertex(environment, vertex), chain(*operators))

    def _checkpointing(self, vertex: str, number: int) -> Checkpointing:
        return Checkpointing(
            self.store.responder_of(vertex, number),
            self._pool.submit,
            InMemoryChannelStateWriter(),
            self._mode,
            {} if self._restored is None else self.store.state_of(self._restored, vertex, number).operators,
        )

    @property
    def running(self) -> list[tuple[str, int]]:
        return [name for name, thread in self._threads.items() if thread.is_alive()]

    def checkpoint(self, checkpoint_id: int, options: CheckpointOptions) -> bool:
        """Trigger it at running sources, and tell all once it is complete; false if a task ended or declined."""
        running = self.running
        now_ms = time.time_ns() // 1_000_000
        for name in running:
            if name[0] == "source":
                self._trigger(name, CheckpointBarrier(checkpoint_id, now_ms, options))
        spin_until(lambda: self._num_answers(checkpoint_id) >= len(running) or self.running != running)
        is_complete = self.store.num_acknowledged(checkpoint_id) >= len(running)
        for task in self.tasks.values():
            assert task.checkpoints is not None
            notify = (
                task.checkpoints.notify_checkpoint_complete_async
                if is_complete
                else task.checkpoints.notify_checkpoint_aborted_async
            )
            notify(checkpoint_id)
        return is_complete

    def _trigger(self, name: tuple[str, int], barrier: CheckpointBarrier) -> None:
        checkpoints = self.tasks[name].checkpoints
        assert checkpoints is not None
        checkpoints.trigger_checkpoint_async(barrier)

    def _num_answers(self, checkpoint_id: int) -> int:
        return self.store.num_acknowledged(checkpoint_id) + len(self.store.declined_by(checkpoint_id))

    def fail(self) -> None:
        """End the tasks as if all TaskManagers were lost, each by its own cancellation or its producer's."""
        for task in self.tasks.values():
            task.cancel()
        self._join_all(failing=True)

    def fail_sources(self) -> None:
        """Cancel the sources alone: everybody behind them ends for that reason."""
        for name, task in self.tasks.items():
            if name[0] == "source":
                task.cancel()
        self._join_all(failing=True)

    def _join_all(self, *, failing: bool) -> None:
        try:
            for thread in self._threads.values():
                with pytest.raises((TaskCancelled, ProducerFailedError)) if failing else nullcontext():
                    thread.result()
        finally:
            self._pool.shutdown()

    def errors(self) -> dict[tuple[str, int], BaseException | None]:
        """Return the error with which each task ended, or None."""
        return {name: thread.error for name, thread in self._threads.items()}

    def finish(self, first_id: int, options: CheckpointOptions) -> None:
        """Checkpoints until all tasks have ended by themselves."""
        checkpoint_id = first_id
        while self.running:
            self.checkpoint(checkpoint_id, options)
            checkpoint_id += 1
        self._join_all(failing=False)


def _of_vertex(environment: TaskEnvironment, vertex: str) -> TaskEnvironment:
    environment.vertex_id = vertex
    return environment


@contextmanager
def job(
    store: InMemoryCheckpointStore, mode: BarrierMode | None, *, end: int | None = None, restored: int | None = None
) -> Iterator[Job]:
    with LocalNetwork(num_segments=256) as network:
        yield Job(network, store, mode, end=end, restored=restored)


def own(state: SubtaskState, operator_id: bytes) -> Any:
    found = state.operators.get(operator_id.hex())
    return found.own if isinstance(found, OperatorState) else None


def in_flight(store: InMemoryCheckpointStore, checkpoint_id: int, producer: str, consumer: str) -> list[Any]:
    """Return the records on an edge, by channel: first those of the consumer, then those of the producer."""
    records: list[Any] = []
    for source in range(PARALLELISM):
        for target in range(PARALLELISM):
            inputs = store.state_of(checkpoint_id, consumer, target).channels.inputs.get((0, source), ())
            outputs = store.state_of(checkpoint_id, producer, source).channels.outputs.get((0, target), ())
            deserializer = ElementDeserializer()
            elements = deserializer.feed(memoryview(b"".join([*inputs, *outputs])))
            assert not deserializer.has_partial
            records += [value for element in elements if isinstance(element, Chunk) for value in element.values]
    return records


def emitted_until(state: Any) -> int:
    """Return how far a source has emitted; records that it has read behind that are in its state, too."""
    if not isinstance(state, PositionWithRest):
        return int(state)
    assert isinstance(state.position, int)
    rest = [number for _, each in state.rest if isinstance(each, KeptRecords) for _, number in each.values]
    assert rest == list(range(state.position - len(rest), state.position))
    return state.position - len(rest)


def numbers_until(positions: Iterable[int]) -> list[int]:
    return [number for position in positions for number in range(position)]


def sums_of(numbers: Iterable[int]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for number in numbers:
        sums[key_of(number)] += number
    return sums


def check_checkpoint(store: InMemoryCheckpointStore, checkpoint_id: int) -> list[int]:
    """Check that state and data in flight are together what the sources had emitted; return their positions."""
    states = [own(store.state_of(checkpoint_id, "source", number), SOURCE_ID) for number in range(PARALLELISM)]
    positions = [emitted_until(state) for state in states]
    emitted = numbers_until(positions)
    on_first, on_second = (
        in_flight(store, checkpoint_id, "source", "sum"),
        in_flight(store, checkpoint_id, "sum", "sink"),
    )

    sums = Counter(dict.fromkeys(map(key_of, range(NUM_KEYS)), 0))
    counts: Counter[str] = Counter()
    for number in range(PARALLELISM):
        state = store.state_of(checkpoint_id, "sum", number).operators.get(SUM_ID.hex())
        if isinstance(state, OperatorState):
            assert isinstance(state.keyed, KeyedStateSnapshot)
            for rows in state.keyed.groups.values():
                sums.update(dict(rows[AGGREGATES].values))
        counts.update(own(store.state_of(checkpoint_id, "sink", number), SINK_ID)[1])
    sums.update(sums_of(number for _, number in on_first))
    assert {key: total for key, total in sums.items() if total} == {
        key: total for key, total in sums_of(emitted).items() if total
    }
    counts.update(key for key, what, *_ in on_second if what != "timer")
    counts.update(key for key, _ in on_first)
    assert counts == Counter(map(key_of, emitted))
    return positions


ALIGNED = CheckpointOptions()
MODES = {
    "aligned": (BarrierMode.ALIGNED, ALIGNED),
    "unaligned": (BarrierMode.UNALIGNED, CheckpointOptions(alignment=Alignment.UNALIGNED)),
    "aligned with timeout": (BarrierMode.ALTERNATING, CheckpointOptions(aligned_timeout_ms=2)),
    "at least once": (None, CheckpointOptions(alignment=Alignment.AT_LEAST_ONCE)),
}
NUM_CHECKPOINTS = 5


def run_and_fail(
    store: InMemoryCheckpointStore, mode: BarrierMode | None, options: CheckpointOptions
) -> list[dict[str, int]]:
    """Take checkpoints 1 to 5 under load; return the metrics of the tasks."""
    with job(store, mode) as attempt:
        for checkpoint_id in range(1, NUM_CHECKPOINTS + 1):
            before = progress(attempt)
            spin_until(lambda before=before: progress(attempt) > before)  # type: ignore[misc]
            assert attempt.checkpoint(checkpoint_id, options)
        metrics = [
            {"num": found.num_checkpoints, "last": found.last_checkpoint_id}
            for found in (task.metrics() for task in attempt.tasks.values())
        ]
        attempt.fail()
    return metrics


def progress(attempt: Job) -> int:
    return sum(sum(sink.counts.values()) for sink in attempt.sinks)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODES if name != "at least once"])
def test_every_checkpoint_under_load_is_exactly_what_was_emitted(name: str) -> None:
    """Positions of the sources = sums and counts + data in flight, by key; tasks tell how many they acknowledged."""
    mode, options = MODES[name]
    store = InMemoryCheckpointStore()

    metrics = run_and_fail(store, mode, options)

    positions = [check_checkpoint(store, checkpoint_id) for checkpoint_id in range(1, NUM_CHECKPOINTS + 1)]
    assert positions == sorted(positions)
    if options.is_unaligned:
        assert any(in_flight(store, each, "source", "sum") for each in range(1, NUM_CHECKPOINTS + 1)), (
            "nothing was ever in flight"
        )
    assert metrics == [{"num": NUM_CHECKPOINTS, "last": NUM_CHECKPOINTS}] * len(metrics)
    for vertex in ("source", "sum", "sink"):
        found, state = store.acknowledgement(NUM_CHECKPOINTS, vertex, 0)
        assert found.bytes_persisted_during_alignment == state.channels.num_bytes


def test_consumers_of_cancelled_sources_end_and_name_the_source() -> None:
    """A consumer that is not cancelled yet when its producers are gone names the producer that was cancelled."""
    mode, options = MODES["aligned"]
    with job(InMemoryCheckpointStore(), mode) as attempt:
        spin_until(lambda: progress(attempt) > 0)
        assert attempt.checkpoint(1, options)
        attempt.fail_sources()
        errors = attempt.errors()
    assert all(isinstance(error, TaskCancelled) for name, error in errors.items() if name[0] == "source")
    for name in (("sum", 0), ("sum", 1)):
        assert isinstance(errors[name], ProducerFailedError)
        assert re.fullmatch(r"source \d \(\d/2\) was cancelled", str(errors[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aligned", "at least once"])
def test_new_tasks_go_on_from_the_last_checkpoint(name: str) -> None:
    """Aligned: every sum, every count and every timer is right, as if nothing had happened.

    At least once: nothing is missing.
    """
    mode, options = MODES[name]
    store = InMemoryCheckpointStore()
    run_and_fail(store, mode, options)
    states = [own(store.state_of(NUM_CHECKPOINTS, "source", number), SOURCE_ID) for number in range(PARALLELISM)]
    restored: dict[int, Any] = {
        number: state.position if isinstance(state, PositionWithRest) else state for number, state in enumerate(states)
    }
    end = max(restored.values()) + 2_500 // CHUNK_RECORDS * CHUNK_RECORDS
    assert any(
        state.timers
        for number in range(PARALLELISM)
        for state in store.state_of(NUM_CHECKPOINTS, "sum", number).operators.values()
    ), "no timer was pending: this shows little"

    with job(store, mode, end=end, restored=NUM_CHECKPOINTS) as attempt:
        attempt.finish(NUM_CHECKPOINTS + 1, options)

    sums, counts, timers = Counter[str](), Counter[str](), Counter[tuple[str, int]]()
    for sink in attempt.sinks:
        sums.update(sink.sums)
        counts.update(sink.counts)
        timers.update(sink.timers)
    ends = [-(-max(end, restored[number]) // CHUNK_RECORDS) * CHUNK_RECORDS for number in range(PARALLELISM)]
    emitted = numbers_until(ends)
    expected_timers = Counter(
        {(key_of(number), (number // BUCKET_MS + 1) * BUCKET_MS): 1 for number in range(max(ends))}
    )
    if mode is None:
        assert sums >= sums_of(emitted)
        assert counts >= Counter(map(key_of, emitted))
        assert timers >= expected_timers
    else:
        assert (sums, counts, timers) == (sums_of(emitted), Counter(map(key_of, emitted)), expected_timers)
