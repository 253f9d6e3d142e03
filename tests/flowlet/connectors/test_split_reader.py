"""The times at which a reader asks for splits, whatever the order of questions and answers."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from flowlet.connectors.split_reader import EARLY_BYTES, SplitReaderBase
from flowlet.splits.split_kinds import FileSplit


class Splits(SplitReaderBase[FileSplit, None, list[FileSplit]]):
    """A reader that reads nothing of its splits."""

    def begun(self) -> list[tuple[FileSplit, None]]:
        return []

    @staticmethod
    def parts_of(position: list[FileSplit]) -> list[tuple[FileSplit, None]]:
        return [(split, None) for split in position]

    @staticmethod
    def position_of(parts: Sequence[tuple[FileSplit, None]]) -> list[FileSplit]:
        return [split for split, _ in parts]

    def poll_chunk(self) -> None:
        raise NotImplementedError

    def taken(self) -> FileSplit | None:
        taken = self.take_split()
        return None if taken is None else taken[0]


class Stock:
    """A stock whose questions are counted."""

    def __init__(self, num_readers: int = 1) -> None:
        self.num_asked = 0
        self.splits: Splits = Splits(num_readers)
        self.splits.start(self._ask)

    def _ask(self) -> None:
        self.num_asked += 1


def test_the_first_question_comes_at_the_start_and_the_next_when_little_is_left() -> None:
    stock = Stock()
    large, small = FileSplit("a", 0, 10 * EARLY_BYTES), FileSplit("b", 0, 10)
    assert stock.num_asked == 1

    stock.splits.add_splits([large, small], 0)
    assert stock.splits.taken() == large
    stock.splits.keep_stocked(EARLY_BYTES)
    assert stock.num_asked == 1, "what has not begun counts as well"
    stock.splits.keep_stocked(EARLY_BYTES - small.size_bytes)
    assert stock.num_asked == 2
    stock.splits.keep_stocked(0)

    assert stock.num_asked == 2, "one question at a time"


def test_after_the_last_answer_nothing_is_asked() -> None:
    stock = Stock()
    stock.splits.add_splits([FileSplit("a", 0, 1)], 0)
    stock.splits.keep_stocked(0)
    stock.splits.no_more_splits()

    assert not stock.splits.is_over
    assert stock.splits.taken() == FileSplit("a", 0, 1)
    assert stock.splits.taken() is None
    assert stock.splits.is_over
    assert stock.splits.available_future().is_done
    assert stock.num_asked == 2


def test_an_answer_may_come_before_the_question_returns() -> None:
    stock: Splits = Splits(1)
    answers = [[FileSplit("a", 0, 1)], [FileSplit("b", 0, 1)]]

    stock.start(lambda: stock.add_splits(answers.pop(0), 0) if answers else stock.no_more_splits())
    taken = [stock.taken(), stock.taken(), stock.taken()]

    assert taken == [FileSplit("a", 0, 1), FileSplit("b", 0, 1), None]
    assert stock.is_over


def test_what_may_be_expected_is_what_came_and_a_share_of_the_rest() -> None:
    stock = Stock(num_readers=4)
    expected = [stock.splits.expected_bytes]

    stock.splits.add_splits([FileSplit("a", 0, 100)], 400)
    expected.append(stock.splits.expected_bytes)
    stock.splits.add_splits([FileSplit("b", 0, 10)], 40)
    expected.append(stock.splits.expected_bytes)
    stock.splits.keep_stocked(0)
    stock.splits.no_more_splits()

    assert [*expected, stock.splits.expected_bytes] == [0, 200, 120, 110]


@given(st.lists(st.sampled_from(["take", "answer", "last answer"]), max_size=40))
def test_a_reader_that_waits_is_woken_by_the_next_answer(steps: list[str]) -> None:
    """A reader that gets no split has a future that the next answer completes, and a question is open for it, in any
    order of steps.
    """
    stock = Stock()
    num_answers, future = 0, None
    for step in steps:
        if step == "take":
            split = stock.splits.taken()
            future = stock.splits.available_future() if split is None else None
            assert future is None or future.is_done == stock.splits.is_over
        elif stock.num_asked > num_answers and not stock.splits.is_over:
            num_answers += 1
            if step == "answer":
                stock.splits.add_splits([FileSplit("s", 0, 1)], 0)
            else:
                stock.splits.no_more_splits()
                num_answers = 1_000
            assert future is None or future.is_done
        assert stock.num_asked <= num_answers + 1
        if future is not None and not future.is_done:
            assert stock.num_asked == num_answers + 1, "an answer is on its way"
