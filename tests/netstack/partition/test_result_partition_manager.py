"""``ResultPartitionManager``: partitions are found while they live, and early consumers are called when they come."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import LocalProtocolError, PartitionNotFoundError, ResourceClosedError
from netstack.ids import ResultPartitionID
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_partition_manager import ResultPartitionManager, TaskEventDispatcher
from netstack.partition.result_subpartition import ResultSubpartitionView
from netstack.wire.events import CancelCheckpointMarker, EndOfSuperstep, Event, OtherEvent
from tests.netstack.gate.manual_timers import Due
from tests.netstack.partition.doubles import ManualTimers, RecordingListener, partition_id_of
from tests.netstack.threads import run_together


class Fixture:
    def __init__(self) -> None:
        self.network = NetworkBufferPool(64, 32)
        self.manager = ResultPartitionManager()

    def partition(self, number: int = 0) -> ResultPartition:
        pool = self.network.create_buffer_pool(owner="producer", num_required=2, max_buffers=4)
        return ResultPartition(partition_id_of(number), 1, pool, "producer")


@pytest.fixture
def it() -> Iterator[Fixture]:
    fixture = Fixture()
    yield fixture
    fixture.manager.shutdown()
    assert len(fixture.manager) == 0
    fixture.network.destroy()
    assert fixture.network.num_available == 64


def test_a_registered_partition_is_found(it: Fixture) -> None:
    """The view of a registered partition reads its data."""
    partition = it.partition()
    it.manager.register(partition)

    view = it.manager.create_subpartition_view(partition.partition_id, 0, RecordingListener())
    partition.emit_record(b"abc", 0)

    found = view.next_buffer()
    assert found is not None
    assert (bytes(found.buffer.view), len(it.manager)) == (b"abc", 1)
    found.buffer.recycle()
    partition.close()


def test_an_unknown_partition_is_not_found(it: Fixture) -> None:
    """The error names it."""
    with pytest.raises(PartitionNotFoundError, match="is not registered"):
        it.manager.create_subpartition_view(partition_id_of(), 0, RecordingListener())


def test_an_id_is_registered_once(it: Fixture) -> None:
    """The first one stays."""
    first, second = it.partition(), it.partition()
    it.manager.register(first)

    with pytest.raises(LocalProtocolError, match="already registered"):
        it.manager.register(second)
    second.close()

    assert len(it.manager) == 1
    first.close()


def test_a_released_partition_is_forgotten(it: Fixture) -> None:
    """Failed, released through the manager, or consumed and closed; its id is free."""
    for how in ("fail", "release", "consume"):
        partition = it.partition()
        it.manager.register(partition)
        if how == "fail":
            partition.fail(ValueError("boom"))
        elif how == "release":
            it.manager.release(partition.partition_id, ValueError("boom"))
        else:
            view = it.manager.create_subpartition_view(partition.partition_id, 0, RecordingListener())
            partition.finish()
            view.release()
        partition.close()

        assert (partition.is_released, len(it.manager)) == (True, 0)
        with pytest.raises(PartitionNotFoundError):
            it.manager.create_subpartition_view(partition.partition_id, 0, RecordingListener())


def test_releasing_what_is_not_there_does_nothing(it: Fixture) -> None:
    """A late order is harmless."""
    it.manager.release(partition_id_of(), None)

    assert len(it.manager) == 0


def test_an_early_consumer_is_called_when_the_partition_comes(it: Fixture) -> None:
    """The consumer is called once, on the registering thread and outside the lock, so that it can ask again at once."""
    partition = it.partition()
    views: list[ResultSubpartitionView | None] = []
    threads: list[int] = []

    def on_partition() -> None:
        threads.append(threading.get_ident())
        views.append(it.manager.create_view_or_listen(partition.partition_id, 0, RecordingListener(), on_partition))

    first = it.manager.create_view_or_listen(partition.partition_id, 0, RecordingListener(), on_partition)
    it.manager.register(partition)

    assert (first, threads, len(views)) == (None, [threading.get_ident()], 1)
    assert views[0] is not None
    partition.close()


def test_a_cancelled_listener_is_not_called(it: Fixture) -> None:
    """The others are; cancelling twice, or what never waited, is harmless."""
    partition = it.partition()
    called: list[str] = []

    def leaves() -> None:
        called.append("leaves")

    def stays() -> None:
        called.append("stays")

    for on_partition in (leaves, stays):
        assert it.manager.create_view_or_listen(partition.partition_id, 0, RecordingListener(), on_partition) is None

    waited = [it.manager.cancel_listener(partition.partition_id, leaves) for _ in range(2)]
    waited.append(it.manager.cancel_listener(partition_id_of(9), leaves))
    it.manager.register(partition)

    assert (called, waited) == (["stays"], [True, False, False])
    partition.close()


def test_shutdown_releases_refuses_and_wakes(it: Fixture) -> None:
    """A shutdown fails readers, calls waiting consumers, and refuses new partitions; a second one does nothing."""
    partition, late = it.partition(0), it.partition(1)
    it.manager.register(partition)
    listener = RecordingListener()
    view = it.manager.create_subpartition_view(partition.partition_id, 0, listener)
    answers: list[str] = []

    def on_partition() -> None:
        with pytest.raises(ResourceClosedError) as caught:
            it.manager.create_view_or_listen(partition_id_of(5), 0, RecordingListener(), on_partition)
        answers.append(str(caught.value))

    assert it.manager.create_view_or_listen(partition_id_of(5), 0, RecordingListener(), on_partition) is None

    it.manager.shutdown()
    it.manager.shutdown()

    assert (view.is_released, listener.count, answers) == (True, 1, ["the result partition manager was shut down"])
    assert "its task manager was shut down" in str(view.failure_cause)
    with pytest.raises(ResourceClosedError):
        it.manager.register(late)
    for each in (partition, late):
        each.close()


@pytest.mark.slow
def test_asking_races_with_registering(it: Fixture, tiny_switch_interval: None) -> None:
    """In every order the consumer gets its view exactly once (FLINK-1954, FLINK-25055)."""
    for number in range(300):
        partition = it.partition(number)
        views: list[ResultSubpartitionView] = []

        def ask(partition: ResultPartition = partition, views: list[ResultSubpartitionView] = views) -> None:
            view = it.manager.create_view_or_listen(partition.partition_id, 0, RecordingListener(), ask)
            if view is not None:
                views.append(view)

        run_together(ask, partial(it.manager.register, partition))

        assert len(views) == 1
        partition.close()


# ---------------------------------------------------------------- listeners that time out, and task events


class Waiting:
    """A manager with timers, and a listener that waits for a partition."""

    def __init__(self) -> None:
        self.timers = ManualTimers()
        self.manager = ResultPartitionManager(timers=self.timers)
        self.calls: list[str] = []
        self.on_partition = lambda: self.calls.append("partition")

    def ask(self) -> None:
        view = self.manager.create_view_or_listen(
            partition_id_of(),
            0,
            RecordingListener(),
            self.on_partition,
            timeout_ms=100,
            on_timeout=lambda: self.calls.append("timeout"),
        )
        assert view is None


def test_partition_request_listener_timeout() -> None:
    """testCreateSubpartitionViewWithListenerTimeout: told once, when the time is over; then forgotten."""
    waiting = Waiting()
    waiting.ask()

    waiting.timers.advance(99)
    before = list(waiting.calls)
    waiting.timers.advance(1)
    waiting.timers.advance(1000)
    waiting.manager.cancel_listener(partition_id_of(), waiting.on_partition)

    assert (before, waiting.calls, len(waiting.timers)) == ([], ["timeout"], 0)
    assert waiting.manager.num_awaited == 0


@pytest.mark.parametrize(("end", "told"), [("register", ["partition"]), ("cancel", []), ("shutdown", ["partition"])])
def test_a_wait_ends_with_its_timer(it: Fixture, end: str, told: list[str]) -> None:
    """A shutdown is told, too, for the answer; who ended the wait itself hears nothing."""
    waiting = Waiting()
    waiting.ask()

    match end:
        case "register":
            waiting.manager.register(it.partition())
        case "cancel":
            waiting.manager.cancel_listener(partition_id_of(), waiting.on_partition)
        case _:
            waiting.manager.shutdown()
    waiting.timers.advance(1000)

    assert (waiting.calls, len(waiting.timers), waiting.manager.num_awaited) == (told, 0, 0)
    waiting.manager.shutdown()


def test_a_partition_that_comes_while_the_timer_is_started_wins(it: Fixture) -> None:
    """The timer that is too late is cancelled at once."""
    waiting, partition = Waiting(), it.partition()
    call_later = waiting.timers.call_later

    def register_first(delay_s: float, call: Callable[[], None]) -> Due:
        waiting.manager.register(partition)
        return call_later(delay_s, call)

    waiting.timers.call_later = register_first  # type: ignore[method-assign]
    waiting.ask()

    assert (waiting.calls, len(waiting.timers)) == (["partition"], 0)
    waiting.manager.shutdown()


def test_a_listener_waits_as_long_as_the_partition_is_announced() -> None:
    """An announced partition may take longer than any timeout: packages may be installed for its producer."""
    waiting = Waiting()
    waiting.manager.announce([partition_id_of()])
    waiting.ask()

    waiting.timers.advance(1000)
    assert waiting.calls == []
    waiting.manager.withdraw([partition_id_of()])
    waiting.timers.advance(100)

    assert (waiting.calls, len(waiting.timers), waiting.manager.num_awaited) == (["timeout"], 0, 0)


def test_a_partition_that_was_registered_is_announced_no_more(it: Fixture) -> None:
    """A request after the partition's release finds none, and does not wait for one."""
    it.manager.announce([partition_id_of()])
    before = it.manager.is_announced(partition_id_of())

    it.manager.register(it.partition())

    assert (before, it.manager.is_announced(partition_id_of())) == (True, False)


def test_a_timeout_that_crosses_the_registration_is_ignored(it: Fixture) -> None:
    """A listener is called once if its timer fires while the partition is registered."""
    waiting, fired = Waiting(), list[Callable[[], None]]()

    def keep(delay_s: float, call: Callable[[], None]) -> Due:
        fired.append(call)
        return Due([], call)

    waiting.timers.call_later = keep  # type: ignore[method-assign]
    waiting.ask()
    waiting.manager.register(it.partition())

    fired[0]()

    assert waiting.calls == ["partition"]
    waiting.manager.shutdown()


def test_without_timers_nothing_times_out(it: Fixture) -> None:
    """A request with a timeout is refused at once by a manager without timers, instead of waiting for ever."""
    with pytest.raises(LocalProtocolError, match="without timers"):
        it.manager.create_view_or_listen(
            partition_id_of(9), 0, RecordingListener(), lambda: None, timeout_ms=1, on_timeout=lambda: None
        )
    assert it.manager.num_awaited == 0


def test_partitions_take_task_events_while_they_are_registered(it: Fixture) -> None:
    """``publish`` returns False if no subscriber got the event."""
    partition, events = it.partition(), list[Event]()
    before = it.manager.task_events.publish(partition.partition_id, EndOfSuperstep())
    it.manager.register(partition)
    it.manager.task_events.subscribe(partition.partition_id, EndOfSuperstep, events.append)
    during = it.manager.task_events.publish(partition.partition_id, EndOfSuperstep())
    partition.release()

    assert (before, during, it.manager.task_events.publish(partition.partition_id, EndOfSuperstep())) == (
        False,
        True,
        False,
    )
    assert events == [EndOfSuperstep()]
    partition.close()


class BusyDispatcher(TaskEventDispatcher):
    """Something else happens before a partition is registered or after it is unregistered."""

    def __init__(self) -> None:
        super().__init__()
        self.before_register: Callable[[], None] | None = None
        self.after_unregister: Callable[[], None] | None = None

    def register_partition(self, partition_id: ResultPartitionID) -> None:
        call, self.before_register = self.before_register, None
        if call is not None:
            call()
        super().register_partition(partition_id)

    def unregister_partition(self, partition_id: ResultPartitionID) -> None:
        super().unregister_partition(partition_id)
        call, self.after_unregister = self.after_unregister, None
        if call is not None:
            call()


@pytest.mark.parametrize("is_known", [True, False], ids=["the partitions", "the task events"])
def test_an_id_that_is_half_free_is_not_registered(it: Fixture, is_known: bool) -> None:
    """A partition is registered for data and for task events, or not at all; its listener is called once it is."""
    dispatcher, called = BusyDispatcher(), list[str]()
    manager = ResultPartitionManager(task_events=dispatcher)
    first, second = it.partition(), it.partition()

    def register_second() -> None:
        with pytest.raises(LocalProtocolError, match="already"):
            manager.register(second)

    if is_known:
        manager.register(first)
        dispatcher.after_unregister = register_second
        first.release()
    else:
        dispatcher.register_partition(partition_id_of())
        register_second()
        dispatcher.unregister_partition(partition_id_of())
    ask = partial(
        manager.create_view_or_listen, partition_id_of(), 0, RecordingListener(), lambda: called.append("partition")
    )
    view = ask()
    before = (len(manager), view)
    manager.register(second)

    assert (before, len(manager), called) == ((0, None), 1, ["partition"])
    manager.shutdown()
    for partition in (first, second):
        partition.close()


def test_a_partition_that_meets_the_shutdown_is_refused_and_leaves_nothing(it: Fixture) -> None:
    """A partition that is refused during the shutdown takes no task events either."""
    dispatcher = BusyDispatcher()
    manager = ResultPartitionManager(task_events=dispatcher)
    dispatcher.before_register = manager.shutdown
    partition = it.partition()

    with pytest.raises(ResourceClosedError):
        manager.register(partition)

    assert (len(manager), dispatcher.publish(partition.partition_id, EndOfSuperstep())) == (0, False)
    partition.close()


# ---------------------------------------------------------------- ``TaskEventDispatcher``


ONE, TWO = partition_id_of(1), partition_id_of(2)


def test_events_reach_the_handlers_of_their_kind() -> None:
    """TaskEventDispatcherTest.publish0: every handler of partition and class, in order; no other."""
    dispatcher, heard = TaskEventDispatcher(), list[tuple[str, Event]]()
    dispatcher.register_partition(ONE)
    dispatcher.register_partition(TWO)
    dispatcher.subscribe(ONE, EndOfSuperstep, lambda event: heard.append(("a", event)))
    dispatcher.subscribe(ONE, EndOfSuperstep, lambda event: heard.append(("b", event)))
    dispatcher.subscribe(ONE, CancelCheckpointMarker, lambda event: heard.append(("c", event)))
    dispatcher.subscribe(TWO, EndOfSuperstep, lambda event: heard.append(("d", event)))

    was_heard = [dispatcher.publish(ONE, EndOfSuperstep()), dispatcher.publish(ONE, CancelCheckpointMarker(4))]

    assert was_heard == [True, True]
    assert heard == [("a", EndOfSuperstep()), ("b", EndOfSuperstep()), ("c", CancelCheckpointMarker(4))]


def test_events_of_other_classes_are_told_apart_by_name() -> None:
    """Task events of Flink travel as a class name and a body, and handlers subscribe by the name."""
    dispatcher, heard = TaskEventDispatcher(), list[Event]()
    dispatcher.register_partition(ONE)
    dispatcher.subscribe(ONE, "com.example.A", heard.append)

    dispatcher.publish(ONE, OtherEvent("com.example.A", b"1"))
    dispatcher.publish(ONE, OtherEvent("com.example.B", b"2"))

    assert heard == [OtherEvent("com.example.A", b"1")]


def test_a_partition_without_registration_hears_nothing() -> None:
    """``publish`` returns False, so that the sender gets an error (TaskEventDispatcherTest)."""
    dispatcher = TaskEventDispatcher()
    before = dispatcher.publish(ONE, EndOfSuperstep())
    dispatcher.register_partition(ONE)
    registered = dispatcher.publish(ONE, EndOfSuperstep())
    dispatcher.unregister_partition(ONE)
    dispatcher.unregister_partition(ONE)
    gone = dispatcher.publish(ONE, EndOfSuperstep())
    dispatcher.register_partition(TWO)
    dispatcher.clear()

    assert (before, registered, gone, dispatcher.publish(TWO, EndOfSuperstep())) == (False, True, False, False)


def test_mistakes_are_refused() -> None:
    """TaskEventDispatcherTest.registerPartitionTwice / subscribeToEventNotRegistered."""
    dispatcher = TaskEventDispatcher()
    dispatcher.register_partition(ONE)

    with pytest.raises(LocalProtocolError, match="takes task events already"):
        dispatcher.register_partition(ONE)
    with pytest.raises(LocalProtocolError, match="takes no task events"):
        dispatcher.subscribe(TWO, EndOfSuperstep, lambda event: None)


def test_a_handler_that_raises_does_not_keep_the_event_from_the_others() -> None:
    """No lock is held while a handler runs, so that it may itself subscribe."""
    dispatcher, heard = TaskEventDispatcher(), list[Event]()
    dispatcher.register_partition(ONE)

    def fail(event: Event) -> None:
        dispatcher.subscribe(ONE, EndOfSuperstep, heard.append)
        raise ValueError("boom")

    dispatcher.subscribe(ONE, EndOfSuperstep, fail)
    dispatcher.subscribe(ONE, EndOfSuperstep, heard.append)

    with pytest.raises(ValueError, match="boom"):
        dispatcher.publish(ONE, EndOfSuperstep())
    assert heard == [EndOfSuperstep()]
