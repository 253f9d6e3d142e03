"""``TaskEventDispatcher``: events of consumers reach the handlers of their partition and kind."""

import pytest

from netstack.errors import LocalProtocolError
from netstack.partition.result_partition_manager import TaskEventDispatcher
from netstack.wire.events import CancelCheckpointMarker, EndOfSuperstep, Event, OtherEvent
from tests.netstack.partition.doubles import partition_id_of

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
    """TaskEventDispatcherTest.publishToUnregisteredPartition / unregisterPartition / clearAll: ``publish`` returns
    False, so that the sender gets an error.
    """
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
