"""The splits that readers are told, and when; the call in the background ends when the test says so."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from flowlet.errors import FlowletError
from flowlet.jm.source_coordinator import MessageFor, SourceCoordinator
from flowlet.messages.control_messages import NoMoreSplits
from flowlet.messages.execution_state import Subtask
from flowlet.splits.enumerator import SplitEnumerator
from flowlet.splits.enumerators import enumerator_for
from flowlet.splits.split_kinds import FileSet, FileSplit, HybridSplits, NumberRange


class Enumerator(SplitEnumerator):
    """Gives single splits of one byte."""

    def __init__(self, num_splits: int) -> None:
        self._waiting = [FileSplit(str(number), 0, 1) for number in range(num_splits)]
        self.num_readers = 0

    def discover(self, num_readers: int) -> None:
        if not self._waiting:
            raise FlowletError("cannot read a.txt")
        self.num_readers = num_readers

    def snapshot(self) -> bytes:
        return len(self._waiting).to_bytes(1, "big")

    def restore(self, state: bytes, num_readers: int) -> None:
        self.num_readers = -num_readers
        self._waiting = self._waiting[len(self._waiting) - state[0] :]

    def left(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def take_left(self, *left: Any) -> None:
        raise NotImplementedError

    discovery_interval_ms: int | None = None
    to_find: Any = ()

    def find_new(self) -> Sequence[Any]:
        if isinstance(self.to_find, Exception):
            raise self.to_find
        return list(self.to_find)

    def add_found(self, found: Sequence[Any]) -> None:
        self._waiting += found

    def next_splits(self, reader: int) -> list[FileSplit]:
        return [self._waiting.pop(0)] if self._waiting else []

    @property
    def waiting_bytes(self) -> int:
        return len(self._waiting)


class Timer:
    """A timer that ``Coordinated.later`` has set."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Coordinated:
    """A coordinator, and its messages."""

    def __init__(
        self, num_splits: int, restored: bytes | None = None, enumerator: SplitEnumerator | None = None
    ) -> None:
        self.said: list[tuple[int, str | None, int]] = []
        self.errors: list[Exception] = []
        self.finish: Callable[[], None] = lambda: None
        self.enumerator = Enumerator(num_splits)
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.timers: list[Timer] = []
        self.coordinator = SourceCoordinator(
            "vertex",
            "source",
            self.enumerator if enumerator is None else enumerator,
            2,
            send=self._send,
            fail=lambda error, _: self.errors.append(error),
            call_in_background=self._call,
            call_later=self._call_later,
            restored=restored,
        )
        self.coordinator.start()

    def _send(self, reader: Subtask, message_for: MessageFor) -> None:
        subtask = reader.subtask
        message = message_for(b"attempt")
        if isinstance(message, NoMoreSplits):
            self.said.append((subtask, None, 0))
            return
        (split,) = message.splits
        name = split.path if isinstance(split, FileSplit) else split.split_id
        self.said.append((subtask, name, message.waiting_bytes))

    def _call_later(self, seconds: float, function: Callable[[], None]) -> "Timer":
        self.later.append((seconds, function))
        self.timers.append(Timer())
        return self.timers[-1]

    def _call(
        self,
        function: Callable[[], Any],
        on_result: Callable[[Any], None],
        on_error: Callable[[Exception], None],
        name: str,
    ) -> None:
        def finish() -> None:
            try:
                result = function()
            except FlowletError as error:
                on_error(error)
            else:
                on_result(result)

        assert name == "splits of source"
        self.finish = finish

    def ask(self, *subtasks: int) -> None:
        for subtask in subtasks:
            self.coordinator.splits_requested(subtask)


def test_readers_that_ask_early_wait_for_the_splits_and_get_them_in_turn() -> None:
    coordinated = Coordinated(3)
    coordinated.ask(1, 0)
    assert "2 readers wait" in repr(coordinated.coordinator)
    assert coordinated.said == []

    coordinated.finish()
    coordinated.ask(1, 0, 1)

    assert coordinated.said == [(1, "0", 2), (0, "1", 1), (1, "2", 0), (0, None, 0), (1, None, 0)]
    assert coordinated.enumerator.num_readers == 2


def test_splits_that_cannot_be_found_fail_the_job_once() -> None:
    coordinated = Coordinated(0)
    coordinated.ask(0)

    coordinated.finish()
    coordinated.ask(0)

    assert [str(error) for error in coordinated.errors] == ["cannot read a.txt"]
    assert coordinated.said == []


def test_after_its_end_nobody_is_told_anything() -> None:
    """Neither results of the search nor questions are answered."""
    for num_splits in (0, 2):
        coordinated = Coordinated(num_splits)
        coordinated.ask(0)

        coordinated.coordinator.close()
        coordinated.finish()
        coordinated.ask(1)

        assert (coordinated.said, coordinated.errors) == ([], [])
        assert "closed" in repr(coordinated.coordinator)


def test_a_restored_coordinator_hands_out_what_was_not_assigned() -> None:
    """The restored coordinator does not discover its splits again."""
    before = Coordinated(3)
    before.finish()
    before.ask(1)
    coordinated = Coordinated(3, before.coordinator.snapshot())

    coordinated.ask(0)
    coordinated.finish()
    coordinated.ask(1, 1)

    assert coordinated.said == [(0, "1", 1), (1, "2", 0), (1, None, 0)]
    assert coordinated.enumerator.num_readers == -2


def test_until_it_is_ready_a_coordinator_is_where_it_began() -> None:
    """A checkpoint may be complete before the splits are discovered, or taken from the checkpoint before."""
    discovering, before = Coordinated(3), Coordinated(3)
    before.finish()
    before.ask(0)
    restoring = Coordinated(3, before.coordinator.snapshot())

    from_the_start, later = (
        Coordinated(3, discovering.coordinator.snapshot()),
        Coordinated(3, restoring.coordinator.snapshot()),
    )
    for coordinated in (from_the_start, later):
        coordinated.finish()
        coordinated.ask(0)

    assert (from_the_start.said, later.said) == ([(0, "0", 2)], [(0, "1", 1)])


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (b"\xc1", "the state of source 'source' in a checkpoint cannot be read"),
        (msgspec.msgpack.encode((2, None)), "the state of source 'source' has version 2, this flowlet reads 1"),
    ],
)
def test_a_state_that_cannot_be_read_fails_the_job(state: bytes, message: str) -> None:
    coordinated = Coordinated(3, state)
    coordinated.ask(0)

    coordinated.finish()

    assert [str(error).startswith(message) for error in coordinated.errors] == [True]
    assert coordinated.said == []


def discovering(num_splits: int) -> Coordinated:
    """New splits are looked for every two seconds; the search at the start is over."""
    coordinated = Coordinated(num_splits)
    coordinated.enumerator.discovery_interval_ms = 2_000
    coordinated.finish()
    return coordinated


def test_a_reader_without_a_split_waits_until_one_appears() -> None:
    coordinated = discovering(1)
    coordinated.ask(0, 0, 1)
    assert coordinated.said == [(0, "0", 0)]
    ((seconds, search),) = coordinated.later
    assert seconds == 2

    search()
    coordinated.enumerator.to_find = [FileSplit("new", 0, 1)]
    coordinated.finish()

    assert coordinated.said == [(0, "0", 0), (0, "new", 0)]
    assert len(coordinated.later) == 2
    assert coordinated.errors == []


def test_a_search_that_fails_is_tried_again_and_no_failure_of_the_job() -> None:
    coordinated = discovering(1)
    coordinated.ask(1, 1)

    coordinated.later.pop()[1]()
    coordinated.enumerator.to_find = FlowletError("no broker")
    coordinated.finish()
    coordinated.later.pop()[1]()
    coordinated.enumerator.to_find = [FileSplit("new", 0, 1)]
    coordinated.finish()

    assert coordinated.said == [(1, "0", 0), (1, "new", 0)]
    assert coordinated.errors == []


def test_a_closed_coordinator_looks_for_nothing() -> None:
    coordinated = discovering(1)
    (_, search) = coordinated.later.pop()
    search()
    coordinated.coordinator.close()

    coordinated.enumerator.to_find = [FileSplit("new", 0, 1)]
    coordinated.finish()
    search()

    assert (coordinated.said, coordinated.later) == ([], [])


def two_sources(restored: bytes | None = None) -> Coordinated:
    """Three numbers, then two."""
    enumerator = enumerator_for(HybridSplits((NumberRange(0, 3), NumberRange(3, 5))))
    return Coordinated(0, restored, enumerator)


def test_the_next_source_is_discovered_on_the_same_thread_once_all_readers_have_come_to_it() -> None:
    """A reader that asks earlier gets no answer until then."""
    coordinated = two_sources()
    coordinated.finish()
    coordinated.ask(0, 0, 0, 0, 1, 0)
    told = [(0, "0: up to 1", 2), (0, "0: up to 2", 1), (0, "0: up to 3", 0), (0, "0: end", 0), (1, "0: end", 0)]
    assert coordinated.said == told

    coordinated.ask(1)

    assert coordinated.said == told
    coordinated.finish()
    assert coordinated.said[5:] == [(0, "1: up to 4", 1), (1, "1: up to 5", 0)]
    coordinated.ask(1, 0)
    assert coordinated.said[7:] == [(1, None, 0), (0, None, 0)]


def test_while_the_next_source_is_discovered_the_state_is_its_beginning() -> None:
    coordinated = two_sources()
    coordinated.finish()
    coordinated.ask(0, 0, 0, 0, 1, 0, 1)
    state = coordinated.coordinator.snapshot()

    restored = two_sources(state)
    restored.ask(1)
    restored.finish()

    assert restored.said == [(1, "1: up to 4", 1)]
    coordinated.finish()
    assert coordinated.coordinator.snapshot() != state


def test_a_next_source_that_cannot_be_discovered_fails_the_job() -> None:
    enumerator = enumerator_for(HybridSplits((NumberRange(0, 0), FileSet(("/nowhere/to/be/found",)))))
    coordinated = Coordinated(0, enumerator=enumerator)
    coordinated.finish()
    coordinated.ask(0, 0, 1, 1)
    assert coordinated.errors == []

    coordinated.finish()

    assert [str(error) for error in coordinated.errors] == [
        "cannot read /nowhere/to/be/found: No such file or directory"
    ]


def test_a_closed_one_leaves_no_timer_behind() -> None:
    """A timer would keep the coordinator of a run that is over, with all its splits, until the next search was due."""
    coordinated = Coordinated(1)
    coordinated.enumerator.discovery_interval_ms = 3_600_000
    coordinated.finish()
    assert len(coordinated.later) == 1

    coordinated.coordinator.close()
    coordinated.coordinator.close()

    assert [timer.is_cancelled for timer in coordinated.timers] == [True]
