"""The moment at which a completion mark leaves a task with several channels."""

from hypothesis import given
from hypothesis import strategies as st

from flowlet.chain.operator_chain import MarkValve
from flowlet.records import CompletionMark


def test_a_mark_leaves_with_the_last_channel() -> None:
    valve = MarkValve(2)

    assert valve.receive(0, CompletionMark(1)) is None
    assert valve.receive(0, CompletionMark(1)) is None
    assert repr(valve) == "<MarkValve after mark 0, 1 of 2 channels are behind>"
    assert valve.receive(1, CompletionMark(1)) == CompletionMark(1)


def test_a_channel_that_ends_holds_back_nothing() -> None:
    valve = MarkValve(3)
    valve.end(0)
    valve.receive(1, CompletionMark(4))

    assert valve.end(2) == CompletionMark(4)
    assert valve.end(1) is None, "the end of data says more than any mark"


@given(st.data())
def test_what_leaves_is_the_smallest_of_the_channels(data: st.DataObject) -> None:
    """The number is right in any order of arrival, with numbers that are left out and channels that end."""
    num_channels = data.draw(st.integers(1, 4))
    valve, last, left = MarkValve(num_channels), [0] * num_channels, 0
    for channel, number in data.draw(st.lists(st.tuples(st.integers(0, num_channels - 1), st.integers(1, 9)))):
        if number == 9:
            passed, last[channel] = valve.end(channel), 9
        else:
            passed, last[channel] = valve.receive(channel, CompletionMark(number)), max(number, last[channel])
        wanted = CompletionMark(min(last)) if left < min(last) < 9 else None
        assert passed == wanted
        left = max(left, min(last))
