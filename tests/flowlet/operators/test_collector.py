from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.datastream.output_tag import OutputTag
from flowlet.operators import collector as collector_module
from flowlet.operators.collector import Collector
from flowlet.records import Chunk
from tests.flowlet.operators.harness import RecordingOutput

TAG = OutputTag("side")
CALLS = st.tuples(
    st.lists(st.sampled_from([1, "a", (1, 2), ("a", [1]), ([1], "a"), (1,), (TAG, "x"), (TAG, [1]), (TAG, 1, 2), [TAG, 1]]), max_size=4),
    st.none() | st.integers(0, 3),
)


class Sides(RecordingOutput):
    """Remembers the chunks of side outputs, too."""

    def __init__(self) -> None:
        super().__init__()
        self.side_chunks: list[Chunk] = []

    def collect_side(self, tag_id: str, chunk: Chunk) -> None:
        assert tag_id == "side"
        self.side_chunks.append(chunk)


def stamped(chunks: list[Chunk]) -> list[tuple[Any, int | None]]:
    nothing: list[int | None] = [None]
    return [pair for each in chunks for pair in zip(each.values, each.timestamps or nothing * len(each), strict=True)]


@given(calls=st.lists(CALLS, max_size=6), limit=st.integers(1, 5), copies=st.booleans(), is_lazy=st.booleans())
def test_every_result_arrives_with_its_timestamp(
    calls: list[tuple[list[Any], int | None]], limit: int, copies: bool, is_lazy: bool
) -> None:
    """In order, in the output that it asked for; what waits is never more than the limit."""
    output = Sides()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collector_module, "FLAT_MAP_CHUNK_RECORDS", limit)
        collector = Collector(output, copies=copies)
        for results, timestamp in calls:
            collector.collect(iter(results) if is_lazy else results, timestamp)
        collector.flush()

    found = [(result, timestamp) for results, timestamp in calls for result in results]
    is_side = [type(result) is tuple and len(result) == 2 and result[0] is TAG for result, _ in found]
    assert stamped(output.chunks) == [pair for pair, side in zip(found, is_side, strict=True) if not side]
    assert stamped(output.side_chunks) == [(pair[0][1], pair[1]) for pair, side in zip(found, is_side, strict=True) if side]
    assert all(len(chunk) <= limit for chunk in [*output.chunks, *output.side_chunks])


def changing(wrap: Any) -> Iterator[Any]:
    shared = [0]
    for number in range(3):
        shared[0] = number
        yield wrap(shared)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: ("a", x), lambda x: (x, "a"), lambda x: (x,), lambda x: (TAG, x)])
@pytest.mark.parametrize("copies", [True, False])
def test_an_object_that_is_yielded_again_changed_is_copied_each_time(wrap: Any, copies: bool) -> None:
    """If objects are not reused; else its last state is seen, as chunks go on as a whole."""
    output = Sides()
    collector = Collector(output, copies=copies)

    collector.collect(changing(wrap), None)
    collector.flush()

    values = [chunk.values for chunk in [*output.chunks, *output.side_chunks]]
    expected = [wrap([number]) for number in ((0, 1, 2) if copies else (2, 2, 2))]
    assert values == [[each[1] for each in expected] if expected[0][0] is TAG else expected]


def test_what_cannot_change_is_no_copy() -> None:
    pair = ("a", 1)
    output = Sides()
    collector = Collector(output, copies=True)

    collector.collect([pair], None)
    collector.flush()

    assert output.values[0] is pair


@pytest.mark.parametrize("results", [5, object()])
def test_results_must_be_iterable(results: Any) -> None:
    with pytest.raises(TypeError, match="yields its results or returns a list of them"):
        Collector(Sides(), copies=False).collect(results, None)


def test_an_error_of_the_users_own_iterable_is_shown_as_it_is() -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        Collector(Sides(), copies=False).collect(Broken(), None)
