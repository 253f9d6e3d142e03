"""``InFlightData``: one end, one owner."""

from collections.abc import Callable

import pytest

from netstack.partition.channel_state import InFlightData
from tests.netstack.partition.doubles import Arena, recycled_sizes


def test_the_buffers_go_to_the_first_who_takes_them() -> None:
    """Callbacks are called once, those who come late at once; whoever takes second gets nothing."""
    arena, data, taken = Arena(), InFlightData(), []
    builder = arena.builder(8)
    consumer = builder.create_buffer_consumer()
    builder.append_and_commit(b"abc")
    data.on_done(lambda done: taken.append(recycled_sizes(done.take())))
    before = (data.is_done, list(taken))

    data.complete([consumer.build()])
    data.on_done(lambda done: taken.append(recycled_sizes(done.take())))

    consumer.close()
    builder.close()
    assert (before, taken, data.is_done, data.error, arena.num_out) == ((False, []), [[3], []], True, None, 0)


@pytest.mark.parametrize("first", ["complete", "fail"])
def test_a_second_end_changes_nothing(first: str) -> None:
    """Buffers that nobody will take are recycled."""
    arena, data, num_calls = Arena(), InFlightData(), [0]
    builder = arena.builder(8)
    consumer = builder.create_buffer_consumer()
    builder.append_and_commit(b"abc")

    def count(done: InFlightData) -> None:
        num_calls[0] += 1

    data.on_done(count)
    ends: dict[str, Callable[[], None]] = {
        "complete": lambda: data.complete([]),
        "fail": lambda: data.fail(ValueError("first")),
    }
    ends[first]()

    data.complete([consumer.build()])
    data.fail(ValueError("second"))

    consumer.close()
    builder.close()
    assert (num_calls, arena.num_out, data.take()) == ([1], 0, [])
    assert str(data.error) == ("first" if first == "fail" else "None")
