"""Numbers of buffers, which wrap."""

from netstack.wire.messages import MAX_SEQUENCE_NUMBER as MAX
from netstack.wire.messages import is_before, wrapped_number


def test_sequence_numbers_wrap_like_java_ints() -> None:
    """After 2^31 - 1 comes -2^31, and before and after can be told apart across the wrap."""
    assert [wrapped_number(number + 1) for number in (0, MAX - 1, MAX, -MAX - 1, -1)] == [1, MAX, -MAX - 1, -MAX, 0]
    assert [is_before(0, 1), is_before(1, 1), is_before(2, 1), is_before(MAX, -MAX - 1), is_before(-MAX - 1, MAX)] == [
        True,
        False,
        False,
        True,
        False,
    ]
