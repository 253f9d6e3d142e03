"""Promises of ``TimerQueue``.

Source: Flink ``InternalPriorityQueueTestBase``, ``KeyGroupPartitionedPriorityQueueTest``.
"""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.errors import KeyTypeError
from flowlet.keys.exact_keys import key_group
from flowlet.timers.keyed_timer_service import Timer, TimerQueue
from tests.flowlet.keys_of_every_type import GOLDEN


def drain(queue: TimerQueue, until: int = 10**9) -> list[Timer]:
    found = []
    while (timer := queue.pop_until(until)) is not None:
        queue.check_invariants()
        found.append(timer)
    return found


def test_timers_come_out_soonest_first_and_in_order_of_their_registration() -> None:
    queue = TimerQueue()
    timers = [Timer(5, "a", None), Timer(3, "b", None), Timer(5, "c", "w"), Timer(4, "a", None)]
    queue.extend(timers)

    assert drain(queue, 4) == [timers[1], timers[3]]
    assert queue.next_timestamp() == 5
    assert drain(queue) == [timers[0], timers[2]]
    assert queue.next_timestamp() is None


def test_keys_that_are_equal_in_python_but_not_the_same_have_timers_of_their_own() -> None:
    """1, 1.0 and True are three keys; 0.0 and -0.0 are two."""
    queue = TimerQueue()

    assert all(queue.add(Timer(5, key, None)) for key in (1, 1.0, True, 0.0, -0.0))
    assert not queue.remove(Timer(5, 0, None))
    assert len(queue) == 5


def test_what_cannot_be_a_key_has_no_timers() -> None:
    with pytest.raises(KeyTypeError):
        TimerQueue().add(Timer(5, {"a"}, None))


def test_keys_of_every_type_have_timers() -> None:
    """Each key has one timer, in the order of the keys; a key that was made again is one with the first."""
    keys = [key for key, _ in GOLDEN]
    queue = TimerQueue()

    for key in keys:
        assert queue.add(Timer(5, key, None))
        assert not queue.add(Timer(5, pickle.loads(pickle.dumps(key)), None))

    assert sum(map(len, queue.by_key_group(128).values())) == len(keys)
    assert all(timer.key is key for timer, key in zip(drain(queue), keys, strict=True))


def test_deleted_timers_do_not_pile_up() -> None:
    """A timer that is moved on with each record, as sessions do."""
    queue = TimerQueue()

    for timestamp in range(10_000):
        queue.add(Timer(timestamp, "a", None))
        queue.remove(Timer(timestamp - 1, "a", None))
        queue.check_invariants()

    assert len(queue) == 1


def test_timers_are_found_by_the_group_of_their_key() -> None:
    queue = TimerQueue()
    queue.extend(Timer(timestamp, f"k{timestamp % 5}", None) for timestamp in range(20))

    groups = queue.by_key_group(128)

    assert sum(map(len, groups.values())) == 20
    assert all(key_group(timer.key, 128) == group for group, timers in groups.items() for timer in timers)


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "pop"]),
        st.integers(0, 5),
        st.sampled_from(["a", "b"]),
        st.sampled_from([None, "w"]),
    )
)


@given(steps=steps)
def test_the_queue_is_a_sorted_set(steps: list[tuple[str, int, str, str | None]]) -> None:
    """The queue holds the timers that a set would after any steps, and gives out its smallest."""
    queue, model = TimerQueue(), set[Timer]()

    for action, timestamp, key, namespace in steps:
        timer = Timer(timestamp, key, namespace)
        if action == "add":
            assert queue.add(timer) == (timer not in model)
            model.add(timer)
        elif action == "remove":
            assert queue.remove(timer) == (timer in model)
            model.discard(timer)
        else:
            popped = queue.pop_until(timestamp)
            due = [each for each in model if each.timestamp <= timestamp]
            assert (popped is None) == (not due)
            if popped is not None:
                assert popped.timestamp == min(each.timestamp for each in due)
                model.remove(popped)
        queue.check_invariants()
        assert set(queue) == model
        assert queue.next_timestamp() == min((each.timestamp for each in model), default=None)
