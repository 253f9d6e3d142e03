"""The content of running reductions in a checkpoint."""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.chain.stream_operator import StreamOperator
from flowlet.columns import columns_of
from flowlet.datastream.user_functions.aggregations import Aggregation
from flowlet.operators.keyed_aggregation_operator import KeyedCountOperator, KeyedReduceOperator, KeyedSumOperator
from flowlet.records import Chunk
from tests.flowlet.operators.harness import Harness


def first_field(record: Any) -> Any:
    return record[0]


def add_in_place(so_far: list[Any], record: list[Any]) -> list[Any]:
    """Change the result so far in place, as users may do to save an object."""
    so_far[1] += record[1]
    return so_far


Make = Callable[[], StreamOperator]
SUM: Make = lambda: KeyedSumOperator(first_field, 1)  # noqa: E731 - a table of cases reads better
SUM_BY_NAME: Make = lambda: KeyedSumOperator(first_field, 2)  # noqa: E731
REDUCE: Make = lambda: KeyedReduceOperator(first_field, add_in_place)  # noqa: E731
CASES = {
    "sums of pairs": (SUM, [("a", 1), ("b", 2)], [("a", 10), ("b", 20), ("c", 5)]),
    "after a record that is no tuple": (SUM, [("a", 1), ["b", 2]], [("a", 10), ("b", 20)]),
    "after a tuple of three": (SUM, [("a", 1), ("b", 2, 3)], [("a", 10), ("b", 20, 30)]),
    "another field": (SUM_BY_NAME, [("a", 0, 1)], [("a", 0, 4), ("b", 0, 1)]),
    "a function that changes its argument": (REDUCE, [["a", 1], ["b", 2]], [["a", 10], ["b", 20]]),
}


@pytest.mark.parametrize(("make", "before", "after"), CASES.values(), ids=CASES)
def test_an_operator_goes_on_from_its_snapshot_as_if_nothing_had_happened(
    make: Make, before: list[Any], after: list[Any]
) -> None:
    """Records between snapshot and failure are not in the snapshot, which serves several restarts and survives being
    stored.
    """
    copied = cloudpickle.dumps((before, after))
    without_failure = Harness(make())
    without_failure.process(*cloudpickle.loads(copied)[0], timestamps=list(range(len(before))))
    expected_from = len(without_failure.output.values)
    without_failure.process(*cloudpickle.loads(copied)[1], timestamps=list(range(len(after))))
    without_failure.operator.finish()

    failing = Harness(make())
    failing.process(*before, timestamps=list(range(len(before))))
    snapshot = failing.snapshot()
    failing.process(*after)
    failing.operator.close()

    for state in (snapshot, snapshot, cloudpickle.loads(cloudpickle.dumps(snapshot))):
        restored = Harness(make(), restored=state)
        restored.process(*cloudpickle.loads(copied)[1], timestamps=list(range(len(after))))
        restored.operator.finish()
        assert restored.output.values == without_failure.output.values[expected_from:]
        assert restored.output.timestamps == without_failure.output.timestamps[expected_from:]


AGGREGATIONS: dict[str, Callable[..., StreamOperator]] = {
    "sum": lambda **emitted: KeyedSumOperator(itemgetter(0), 1, **emitted),
    "count": lambda **emitted: KeyedCountOperator(itemgetter(0), **emitted),
    **{
        name: partial(lambda name, **emitted: KeyedReduceOperator(itemgetter(0), Aggregation(name, 1), **emitted), name)
        for name in ("min", "max", "min_by", "max_by")
    },
}


@pytest.mark.parametrize("kind", AGGREGATIONS)
@pytest.mark.parametrize("emitted", [{}, {"emits_batches": True}], ids=str)
@settings(max_examples=15)
@given(
    sizes=st.lists(st.sampled_from([1, 40]), min_size=2, max_size=4),
    keys=st.lists(st.sampled_from(["a", "b", 1, True, 1.0, None, ("x", 1)]), min_size=1, max_size=4),
    first=st.sampled_from([0, 0.5]),
    crash=st.integers(1, 3),
)
def test_every_aggregation_goes_on_from_a_snapshot_that_was_stored(
    kind: str, emitted: dict[str, bool], sizes: list[int], keys: list[Any], first: float, crash: int
) -> None:
    """The state may be in columns (large chunks) or not, with keys of one type or of several."""
    chunks = [
        [(keys[number % len(keys)], first + (number * 7 + size) % 11) for number in range(size)] for size in sizes
    ]

    def fed(harness: Harness, those: list[list[Any]]) -> list[str]:
        start = len(harness.output.values)
        for records in those:
            harness.operator.process_chunk(
                Chunk.of_columns(column) if (column := columns_of(records)) is not None else Chunk(records)
            )
        return list(map(repr, harness.output.values[start:]))

    steady = Harness(AGGREGATIONS[kind](**emitted))
    fed(steady, chunks[:crash])
    expected = fed(steady, chunks[crash:])
    before = Harness(AGGREGATIONS[kind](**emitted))
    fed(before, chunks[:crash])
    stored = cloudpickle.dumps(before.snapshot())
    fed(before, chunks)

    after = Harness(AGGREGATIONS[kind](**emitted), restored=cloudpickle.loads(stored))
    found = fed(after, chunks[crash:])

    assert found == expected


def test_without_a_record_there_is_no_state() -> None:
    harness = Harness(SUM())

    assert harness.snapshot() is None

    harness.process(("a", 1))
    assert harness.output.values == [("a", 1)]
