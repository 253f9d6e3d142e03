"""Interval joins beside a plain pair of loops over everything that came."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flowlet.datastream import OutputTag, ProcessJoinFunction, RuntimeContext
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.errors import FlowletError, UserFunctionError
from flowlet.joins import interval_join_operator as join_buffer
from flowlet.joins.interval_join_operator import IntervalJoinOperator
from flowlet.testing import StreamRecord, TwoInputOperatorHarness
from tests.flowlet.joins.subtasks import Subtasks

LATE_LEFT, LATE_RIGHT, ODD = "late left", "late right", OutputTag("odd")
NUM_STEPS = 60
Record = tuple[str, int]  # key and serial number


def key_of(record: Any) -> Any:
    return record[0]


class Pairs(ProcessJoinFunction):
    """Yields both records with their timestamps."""

    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterator[Any]:
        yield left, right, ctx.get_left_timestamp(), ctx.get_right_timestamp(), ctx.get_timestamp()


def joined(function: Any, lower: int, upper: int) -> IntervalJoinOperator:
    return IntervalJoinOperator(function, (key_of, key_of), (lower, upper), late_tags=(LATE_LEFT, LATE_RIGHT))


@dataclass
class NestedLoops:
    """Keeps every record until the watermark has passed its last partner, and looks at all of them."""

    lower: int
    upper: int
    kept: tuple[list[tuple[Record, int]], list[tuple[Record, int]]] = field(default_factory=lambda: ([], []))
    watermark: int | None = None
    late: tuple[list[Record], list[Record]] = field(default_factory=lambda: ([], []))

    def advance(self, watermark: int) -> None:
        if self.watermark is None or watermark > self.watermark:
            self._forget(watermark)

    def restart(self) -> None:
        """The sources give the watermark again; it forgets a record that came at its very time."""
        if self.watermark is not None:
            self._forget(self.watermark)

    def _forget(self, watermark: int) -> None:
        self.watermark = watermark
        for side, last in ((0, self.upper), (1, -self.lower)):
            self.kept[side][:] = [(record, at) for record, at in self.kept[side] if at + max(last, 0) > watermark]

    def add(self, side: int, record: Record, timestamp: int) -> list[StreamRecord]:
        if self.watermark is not None and timestamp < self.watermark:
            self.late[side].append(record)
            return []
        self.kept[side].append((record, timestamp))
        pairs = []
        for other, at in sorted(self.kept[1 - side], key=lambda each: each[1]):
            (left, left_at), (right, right_at) = (
                ((record, timestamp), (other, at)) if side == 0 else ((other, at), (record, timestamp))
            )
            if left[0] == right[0] and left_at + self.lower <= right_at <= left_at + self.upper:
                latest = max(left_at, right_at)
                pairs.append(StreamRecord((left, right, left_at, right_at, latest), latest))
        return pairs


def by_key(records: list[StreamRecord]) -> dict[str, list[StreamRecord]]:
    """Return the records of each key in order; keys of several subtasks have no order between them."""
    found: dict[str, list[StreamRecord]] = {}
    for record in records:
        found.setdefault(record.value[0][0], []).append(record)
    return found


def run_beside_loops(seed: int, rocksdb: Path | None) -> None:
    """Random records, chunks, watermarks, late records, snapshots and numbers of subtasks."""
    rng = random.Random(seed)
    lower = rng.choice([-20, -9, -3, 0, 0, 2, 15])
    upper = lower + rng.choice([0, 1, 3, 7, 8, 30])
    plain, operator, numbers = (
        NestedLoops(lower, upper),
        Subtasks(lambda: joined(Pairs(), lower, upper), key_of, rocksdb),
        itertools.count(),
    )
    now = 0
    try:
        for _ in range(NUM_STEPS):
            step = rng.random()
            if step < 0.15:
                operator.advance(now)
                plain.advance(now)
            elif step < 0.2:
                operator.rescale(rng.randint(1, 3))
                plain.restart()
            else:
                now += rng.choice([0, 1, 5])
                side, size = rng.randrange(2), rng.choice([1, 1, 2, 5])
                records = [(rng.choice("abc"), next(numbers)) for _ in range(size)]
                times = [max(0, now + rng.randint(-6, 12)) for _ in range(size)]
                operator.process(side + 1, records, times)
                expected = [
                    pair for record, at in zip(records, times, strict=True) for pair in plain.add(side, record, at)
                ]
                found, *late = operator.take(LATE_LEFT, LATE_RIGHT)
                assert by_key(found) == by_key(expected), f"seed {seed}"
                assert [sorted(each.value for each in side) for side in late] == [
                    sorted(side) for side in plain.late
                ], f"seed {seed}"
                for gone in plain.late:
                    gone.clear()
        operator.advance(now + 1_000)
        assert (operator.num_timers, operator.num_kept) == (0, 0)
    finally:
        operator.close()


@pytest.fixture(params=[2, 32])
def block_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the size of the blocks that hold the records of one timestamp."""
    monkeypatch.setattr(join_buffer, "_BLOCK_SIZE", request.param)


@pytest.mark.slow
@pytest.mark.usefixtures("block_size")
def test_random_streams_give_what_nested_loops_give() -> None:
    """With equal timestamps, late records, snapshots and other numbers of subtasks; no state is left."""
    for seed in range(20):
        run_beside_loops(seed, None)


@pytest.mark.slow
@pytest.mark.usefixtures("block_size")
def test_state_in_rocksdb_gives_the_same(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")

    run_beside_loops(1_000, tmp_path)


@pytest.mark.long
@pytest.mark.usefixtures("block_size")
def test_many_random_streams_give_what_nested_loops_give() -> None:
    for seed in range(10_000, 11_000):
        run_beside_loops(seed, None)


def test_a_record_that_comes_at_the_watermark_is_forgotten_by_the_first_one_after_a_restart() -> None:
    """Such a record is kept until the next watermark, which is the restored one after a restart."""
    run_beside_loops(11_058, None)


def harness_of(function: Any, lower: int = -5, upper: int = 5) -> TwoInputOperatorHarness:
    return TwoInputOperatorHarness(joined(function, lower, upper))


def test_a_pair_is_emitted_once_when_its_second_record_comes() -> None:
    """A pair has the later of both timestamps."""
    with harness_of(Pairs()) as harness:
        harness.process_element1(("a", 1), 10)
        harness.process_element2(("a", 2), 5)
        harness.process_element2(("a", 3), 4)  # too far away
        harness.process_element2(("b", 4), 10)  # another key

        assert harness.records == [StreamRecord((("a", 1), ("a", 2), 10, 5, 10), 10)]


def test_the_watermark_forgets_a_record_when_its_last_partner_has_passed() -> None:
    with harness_of(Pairs(), lower=0, upper=3) as harness:
        harness.process_element1(("a", 1), 10)
        harness.process_element2(("a", 2), 10)
        harness.process_both_watermarks(10)
        assert [timer.timestamp for timer in harness.event_time_timers] == [13]

        harness.process_both_watermarks(13)
        assert harness.num_event_time_timers == 0
        harness.process_element2(("a", 3), 13)

        assert len(harness.records) == 1


class Sides(ProcessJoinFunction):
    """Counts in a state of its own; sends odd numbers aside."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        if right[1] % 2:
            return [(ODD, right[1])]
        return None if right[1] == 0 else [(left[0], self.count.value())]


def test_the_function_may_keep_state_and_write_to_side_outputs() -> None:
    with harness_of(Sides()) as harness:
        harness.process_element1(("a", 1), 1)
        harness.process_elements2([("a", 1), ("a", 0), ("a", 2)], [1, 2, 3])

        assert harness.values == [("a", 3)]
        assert harness.side_output(ODD) == [StreamRecord(1, 1)]


class Fails(ProcessJoinFunction):
    """Cannot join."""

    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Any:
        raise ValueError(f"{left} and {right}")


def test_an_error_names_the_operator_and_the_record_that_came_last() -> None:
    with harness_of(Fails()) as harness:
        harness.process_element1(("a", 1), 1)

        with pytest.raises(UserFunctionError, match=r"Interval Join.*'a', 2") as failure:
            harness.process_element2(("a", 2), 1)

    assert str(failure.value.__cause__) == "('a', 1) and ('a', 2)"


def test_records_without_timestamps_are_refused_with_advice() -> None:
    with (
        harness_of(Pairs()) as harness,
        pytest.raises(FlowletError, match=r"need timestamps; call assign_timestamps_and_watermarks"),
    ):
        harness.process_element1(("a", 1))


class Keeps(ProcessJoinFunction):
    """Keeps its context."""

    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Any:
        self.ctx = ctx


def test_the_context_answers_only_while_a_pair_is_processed() -> None:
    function = Keeps()
    with TwoInputOperatorHarness(joined(function, 0, 0), is_shipped=False) as harness:
        harness.process_element1(("a", 1), 1)
        harness.process_element2(("a", 2), 1)

        for method in ("get_left_timestamp", "get_right_timestamp", "get_timestamp"):
            with pytest.raises(FlowletError, match="can only be used while its pair is processed"):
                getattr(function.ctx, method)()
