"""A stream task that waits does nothing at all: it parks once, and Flink's slices of one second are only looks at an
empty mailbox.

``bench/wakeup.py`` measures what that costs.
"""

from collections.abc import Callable

import pytest

from flowlet.errors import TaskCancelled
from flowlet.mailbox.mailbox_processor import MailboxProcessor, TaskTimings
from flowlet.records import Chunk
from flowlet.serde.element_serializer import StreamElementSerializer
from flowlet.task.stream_task import StreamTask
from netstack.partition.result_partition import ResultPartition
from tests.flowlet.task.local_network import SEGMENT_BYTES, LocalNetwork, Recorder, Thread, edge
from tests.flowlet.task.local_tasks import Clock, Tasks, source

HOUR = 3600
NS_PER_S = 1_000_000_000


@pytest.fixture(autouse=True)
def no_time_slice_comes_to_the_rescue() -> None:
    """Keep the slices: they are tested here."""


class ManualSleep:
    """Stands where a parked task sleeps: no time passes but the clock's, and after so many slices something happens,
    once each.

    Args:
        task: not yet started; counted from now on.
        clock: the task's.
        happenings: after each number of slices in a row, what another thread does then.
    """

    def __init__(self, task: StreamTask, clock: Clock, *happenings: tuple[int, Callable[[], object]]) -> None:
        self.slices_s: list[float] = []
        self.work: list[tuple[int, int, int]] = []  # what the task had done at the end of each slice
        self._clock = clock
        self._happenings = list(happenings)
        self._is_released = False
        self._num_actions = 0
        self._task = task
        self._action = task.mailbox_processor.default_action
        task.mailbox_processor.default_action = self._count
        task.mailbox._wakeup = self  # type: ignore[assignment]  # stands in for the lock

    def _count(self, controller: MailboxProcessor) -> None:
        self._num_actions += 1
        self._action(controller)

    def acquire(self, timeout: float = -1) -> bool:
        if not self._is_released:
            assert timeout > 0, "without a slice this sleep would not end"
            self._pass(timeout)
        was_released, self._is_released = self._is_released, False
        return was_released

    def _pass(self, slice_s: float) -> None:
        self.slices_s.append(slice_s)
        self._clock.now_ns += int(slice_s * NS_PER_S)
        processor, mailbox = self._task.mailbox_processor, self._task.mailbox
        self.work.append((self._num_actions, processor.num_mails_processed, mailbox.statistics().num_parks))
        num_slices, happen = self._happenings[0]
        if num_slices > 1:
            self._happenings[0] = (num_slices - 1, happen)
            return
        del self._happenings[0]
        Thread(happen, "another thread").result()

    def release(self) -> None:
        assert not self._is_released, "woken twice for one sleep"
        self._is_released = True

    def locked(self) -> bool:
        return not self._is_released


def write(partition: ResultPartition) -> None:
    partition.emit_record(StreamElementSerializer().serialize(Chunk([1, 2])), 0)
    partition.flush_all()


def waits_for_input(tasks: Tasks) -> StreamTask:
    return tasks.sink(Recorder(), producers=[tasks.network.partition()])


def waits_for_a_buffer(tasks: Tasks) -> StreamTask:
    partition = tasks.network.partition(max_buffers=2)
    return tasks.source(source(*([bytes(SEGMENT_BYTES // 2)] for _ in range(20))), outputs=[edge(partition)])


def waits_for_the_acknowledgement(tasks: Tasks) -> StreamTask:
    return tasks.source(source([1], [2]), outputs=[edge(tasks.network.partition(), buffer_timeout_ms=100)])


@pytest.mark.parametrize("make", [waits_for_input, waits_for_a_buffer, waits_for_the_acknowledgement])
def test_an_hour_of_waiting_is_one_park_in_slices_of_a_second(
    make: Callable[[Tasks], StreamTask], tasks: Tasks
) -> None:
    """The task has no mail, no default action and no second park between the first second and the last."""
    task = make(tasks)
    task._timings = TaskTimings(tasks.clock)
    task.mailbox_processor.timings = task._timings
    sleep = ManualSleep(task, tasks.clock, (HOUR, task.cancel))

    with pytest.raises(TaskCancelled):
        task.invoke()

    assert sleep.slices_s == [1.0] * HOUR
    assert sleep.work == [sleep.work[0]] * HOUR
    assert sleep.work[0][2] == 1
    snapshot = task._timings.snapshot()
    assert snapshot.idle_ns + snapshot.soft_back_pressured_ns == snapshot.running_ns == HOUR * NS_PER_S
    assert task.mailbox.statistics().num_rescued_wakeups == 0


def test_data_wakes_a_parked_task_once(network: LocalNetwork, tasks: Tasks) -> None:
    """One mail, one default action, and it parks again; the end of the input wakes it once more."""
    partition, recorder = network.partition(), Recorder()
    task = tasks.sink(recorder, producers=[partition])
    sleep = ManualSleep(task, tasks.clock, (10, lambda: write(partition)), (10, task.cancel))

    with pytest.raises(TaskCancelled):
        task.invoke()

    assert recorder.values == [1, 2]
    (actions, mails, parks), woken = sleep.work[0], sleep.work[-1]
    assert sleep.work == [(actions, mails, parks)] * 10 + [woken] * 10
    assert woken == (actions + 1, mails + 1, parks + 1)
