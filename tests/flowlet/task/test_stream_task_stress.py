"""A cancellation that strikes a whole stream task anywhere between its start and its natural end, under constant thread
switches.
"""

from collections import Counter
from collections.abc import Iterator

import pytest

from flowlet.errors import TaskCancelled
from flowlet.mailbox.task_mailbox import MailboxState
from flowlet.messages.execution_state import ExecutionState
from flowlet.records import Chunk
from flowlet.serde.element_serializer import StreamElementSerializer
from flowlet.task.stream_task import StreamTask
from netstack.wire.events import StopMode
from tests.flowlet.task.local_network import LocalNetwork, Recorder
from tests.flowlet.task.local_tasks import Tasks, source
from tests.flowlet.task.watchdog import tiny_switch_interval, watchdog
from tests.stress import Opponent, num_rounds

pytestmark = pytest.mark.slow

NUM_SOURCES = num_rounds(3_000)
NUM_SINKS = num_rounds(1_600)
PER_BATCH = 200
FORCED_EVERY = 50  # so often each of the two orders is forced; in between chance decides


@pytest.fixture(autouse=True)
def _many_switches() -> Iterator[None]:
    with tiny_switch_interval():
        yield


def is_cancelled(task: StreamTask) -> bool:
    """Run it; whether it was cancelled before its end."""
    try:
        task.invoke()
    except TaskCancelled:
        return True
    return False


class Race:
    """Runs tasks on the test's thread while the opponent cancels each of them; checks how each of them ends."""

    def __init__(self) -> None:
        self.tasks: list[StreamTask] = []
        self.recorders: list[Recorder] = []
        self.ends: Counter[ExecutionState] = Counter()

    def add(self, task: StreamTask, recorder: Recorder) -> None:
        self.tasks.append(task)
        self.recorders.append(recorder)

    def cancel(self, round_: int) -> None:
        """The opponent's part."""
        self.tasks[round_ % PER_BATCH].cancel()

    def run(self, opponent: Opponent) -> None:
        """All tasks of this batch, one after another."""
        with watchdog():
            for index, (task, recorder) in enumerate(zip(self.tasks, self.recorders, strict=True)):
                if index % FORCED_EVERY == 0:  # cancelled before it begins
                    opponent.begin()
                    opponent.wait()
                    was_cancelled = is_cancelled(task)
                elif index % FORCED_EVERY == 1:  # cancelled after its end
                    was_cancelled = is_cancelled(task)
                    opponent.begin()
                    opponent.wait()
                else:
                    opponent.begin()
                    was_cancelled = is_cancelled(task)
                    opponent.wait()
                self._check(task, recorder, was_cancelled=was_cancelled)

    def _check(self, task: StreamTask, recorder: Recorder, *, was_cancelled: bool) -> None:
        assert task.state is (ExecutionState.CANCELED if was_cancelled else ExecutionState.FINISHED), repr(task)
        has_started = bool(recorder.calls)
        assert recorder.calls.count("close") == has_started, f"{recorder.calls} of {task!r}"
        if has_started:
            assert task.mailbox.state is MailboxState.CLOSED
            assert len(recorder.threads) == 1, "an operator ran on the thread that cancels"
        self.ends[task.state] += 1
        assert was_cancelled or (recorder.calls[-2:] == ["finish", "close"] and recorder.values == [1, 2, 3])


def test_a_cancellation_against_the_natural_end_of_a_source_task() -> None:
    """A task finishes with every step taken, or is cancelled: never a third error, never both, operators closed once
    (FLINK-14544).
    """
    race = Race()
    with LocalNetwork() as network, Opponent.acting(race.cancel) as opponent:
        for _ in range(NUM_SOURCES // PER_BATCH):
            race.tasks, race.recorders = [], []
            for _ in range(PER_BATCH):
                recorder = Recorder()
                race.add(Tasks(network).source(source([1, 2], [3]), recorder), recorder)
            race.run(opponent)

    assert len(race.ends) == 2
    assert race.ends.total() == NUM_SOURCES


def test_a_cancellation_against_the_natural_end_of_a_task_that_reads() -> None:
    """The gate, the partition and every buffer of the task are given back, whichever of the two was first."""
    race = Race()
    record = StreamElementSerializer().serialize(Chunk([1, 2, 3]))
    with Opponent.acting(race.cancel) as opponent:
        for _ in range(NUM_SINKS // PER_BATCH):
            with LocalNetwork(num_segments=8 * PER_BATCH) as network:
                race.tasks, race.recorders = [], []
                for _ in range(PER_BATCH):
                    partition = network.partition(max_buffers=4)
                    partition.emit_record(record, 0)
                    partition.notify_end_of_data(StopMode.DRAIN)
                    partition.finish()
                    recorder = Recorder()
                    race.add(Tasks(network).sink(recorder, producers=[partition]), recorder)
                race.run(opponent)

    assert len(race.ends) == 2
    assert race.ends.total() == NUM_SINKS
