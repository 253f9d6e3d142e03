"""The work that runs on the loop, and the moments at which it goes back to its own thread."""

from collections.abc import Callable
from typing import Any

import pytest

from flowlet.async_io.async_wait_operator import AsyncWaitOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.mailbox.mailbox_processor import Suspension, WaitKind
from flowlet.task import one_input_stream_task
from flowlet.task.one_input_stream_task import BUDGET_NS, SLOW_NS, LightTask, add_slow_vertex, can_be_light

_S = 1_000_000_000


class Rig:
    """A gate with data, and other elements behind them; a mailbox, a processor and a task, as far as they are needed.

    An action runs at once, as if the thread was parked.
    """

    has_mail = False
    is_parked = is_loop_thread = True

    def __init__(self, num_data: int, *, cost_ns: int = 10) -> None:
        self.num_data = num_data
        self.cost_ns = cost_ns
        self.now_ns = 0
        self.num_runs = self.num_waits = self.num_slow = 0
        self.mailbox = self.mailbox_processor = self
        rig: Any = self
        self.task = LightTask(rig, rig, self._process_one, lambda: self.is_loop_thread, lambda: self.now_ns)

    @property
    def next_is_data(self) -> bool:
        return self.num_data > 0

    def try_run_parked(self, suspension: Suspension, action: Callable[[Any], None], now_ns: int) -> bool:
        if self.is_parked:
            self.num_runs += 1
            action(None)
        return self.is_parked

    def _process_one(self) -> None:
        self.num_data -= 1
        self.now_ns += self.cost_ns

    def _stood_in_the_way(self) -> None:
        self.num_slow += 1

    def _wait_for_input(self, controller: object) -> None:
        self.num_waits += 1

    def try_run(self) -> bool:
        return self.task.try_run(Suspension(None, WaitKind.IDLE, "input"))  # type: ignore[arg-type]  # never resumed


@pytest.mark.parametrize(
    ("num_data", "change", "runs", "num_left", "num_waits"),
    [
        (3, {}, True, 0, 1),
        (0, {}, True, 0, 0),
        (3, {"has_mail": True}, True, 2, 0),
        (3, {"is_loop_thread": False}, False, 3, 0),
        (3, {"is_parked": False}, False, 3, 0),
    ],
    ids=[
        "all that has arrived is processed and then waited for",
        "an event is its own thread's work",
        "a mail ends the slice",
        "another thread, such as a producer's, leaves it to its own",
        "a task that works is told as usual",
    ],
)
def test_a_slice(num_data: int, change: dict[str, bool], runs: bool, num_left: int, num_waits: int) -> None:
    """Unless the task waits for more input, its own thread goes on."""
    rig = Rig(num_data)
    for name, value in change.items():
        setattr(rig, name, value)

    assert rig.try_run() is runs

    assert (rig.num_data, rig.num_waits) == (num_left, num_waits)


def test_a_task_that_takes_long_goes_back_to_its_thread_each_time_for_longer() -> None:
    rig = Rig(100, cost_ns=BUDGET_NS + 1)

    for pause_s in (1, 2, 4):
        assert rig.try_run()
        assert rig.num_waits == 0, "its own thread goes on with the rest"
        end_ns = rig.now_ns
        rig.now_ns = end_ns + pause_s * _S - 10
        assert not rig.try_run()
        rig.now_ns = end_ns + pause_s * _S

    assert rig.num_runs == 3


def test_a_task_that_was_quick_for_long_enough_goes_back_for_a_second_again() -> None:
    """Another user of the loop may have kept it from its core, which says little of the task."""
    rig = Rig(100, cost_ns=BUDGET_NS + 1)
    seen = []

    for own_s, quick_s in ((0, 0), (1, 0), (2, 0), (4, 3), (8, 8), (1, 0)):
        rig.now_ns += (own_s + quick_s) * _S
        assert rig.try_run(), f"it was {own_s} s on its own thread"
        seen.append(repr(rig.task))

    assert seen == [f"<LightTask, the last time {pause_s} s on its own thread>" for pause_s in (1, 2, 4, 8, 1, 2)]


def test_a_task_that_was_slow_once_never_runs_on_the_loop_again() -> None:
    """One call stopped the network; a second one does not."""
    rig = Rig(100, cost_ns=SLOW_NS + 1)

    first = rig.try_run()
    rig.now_ns += 1_000_000 * _S
    rig.cost_ns = 10

    assert (first, rig.try_run(), rig.num_runs, rig.num_slow) == (True, False, 1, 1)
    assert repr(rig.task) == "<LightTask, on its own thread for good>"


def test_many_quick_calls_are_not_one_slow_call() -> None:
    """The budget ends them, and the task comes back."""
    rig = Rig(10_000, cost_ns=BUDGET_NS // 2)

    rig.try_run()
    rig.now_ns += _S

    assert rig.try_run()
    assert rig.num_slow == 0


def test_the_oldest_slow_vertices_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    vertices: dict[tuple[str, str], None] = {}
    monkeypatch.setattr(one_input_stream_task, "SLOW_VERTICES", vertices)

    for number in range(10_001):
        add_slow_vertex(("job", f"{number}"))

    assert ("job", "0") not in vertices
    assert ("job", "1") in vertices
    assert ("job", "10000") in vertices


@pytest.mark.parametrize(("num_gates", "num_outputs", "is_light"), [(1, 0, True), (2, 0, False), (1, 1, False)])
def test_a_task_that_may_wait_for_buffers_or_chooses_among_gates_is_not_light(
    num_gates: int, num_outputs: int, *, is_light: bool
) -> None:
    """Nor is one with an operator that waits for its mails."""
    waiting = AsyncWaitOperator.__new__(AsyncWaitOperator)

    assert can_be_light([StreamOperator()], num_gates=num_gates, num_outputs=num_outputs) is is_light
    assert not can_be_light([StreamOperator(), waiting], num_gates=num_gates, num_outputs=num_outputs)
