"""Promises of sources that have a watermark strategy.

Source: Flink ``SourceOperatorTest``, ``SourceOperatorAlignmentTest``, ``SourceOperatorSplitWatermarkAlignmentTest``,
``SourceOperatorWatermarksTest``.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from flowlet.chain.stream_operator import OperatorContext
from flowlet.common import Duration, WatermarkStrategy
from flowlet.common.watermark_generator import WatermarkGenerator, WatermarkOutput
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.connectors.files.reader import TextLineReader
from flowlet.operators.source_operator import SourceOperator
from flowlet.operators.source_reader import OpenSplits, Source, SourceReader
from flowlet.records import ACTIVE, IDLE, MAX_TIMESTAMP, MAX_WATERMARK, Chunk, Watermark
from flowlet.splits.split_kinds import FileSplit
from flowlet.testing.manual_processing_time_service import TestProcessingTimeService
from tests.flowlet.operators.harness import RecordingOutput, set_up

INTERVAL_MS = 50
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()
ALIGNED = MONOTONOUS.with_watermark_alignment("group", Duration.of_millis(10), Duration.of_millis(100))


class Reader:
    """A reader with the elements that the test puts into it, as (split, timestamp), or whole."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.num_polls = 0

    def poll_chunk(self) -> Any:
        self.num_polls += 1
        return self.next_element()

    def next_element(self) -> Any:
        return self.script.pop(0) if self.script else Chunk([])

    def close(self) -> None:
        pass


class Splits(Reader):
    """The same with splits, which are open from the start."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.open_splits = OpenSplits(names)
        self.current_split = ""
        self.orders: list[tuple[list[str], list[str]]] = []

    def next_element(self) -> Chunk:
        self.current_split, timestamp = self.script.pop(0)
        return Chunk([self.current_split], [timestamp])

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        self.orders.append((sorted(pause), sorted(resume)))


class Given(Source):
    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        return self.reader


class Driver:
    """A source with a clock that the test moves, and a listener to its reports."""

    def __init__(
        self, strategy: WatermarkStrategy, reader: Reader | None = None, *, emits_watermarks: bool = True
    ) -> None:
        self.reader: Any = Reader() if reader is None else reader
        self.clock = TestProcessingTimeService()
        self.output = RecordingOutput()
        self.reports: list[int] = []
        self.operator = SourceOperator(Given(self.reader), strategy=strategy, emits_watermarks=emits_watermarks)
        self.operator.auto_watermark_interval_ms = INTERVAL_MS
        ctx = OperatorContext("task", 0, 1, 128, "Source", clock=self.clock, report_watermark=self.reports.append)
        set_up(self.operator, ctx, self.output)
        self.operator.open()

    def read(self, *script: Any) -> None:
        self.reader.script += script
        for _ in script:
            assert self.operator.emit_next()

    def out(self) -> list[Any]:
        """Timestamps of records as ("record", t), watermarks as numbers, since the last time."""
        elements, self.output.elements = self.output.elements, []
        found: list[Any] = []
        for element in elements:
            if isinstance(element, Chunk):
                found += [("record", stamp) for stamp in element.timestamps or []]
            else:
                found.append(element.timestamp if isinstance(element, Watermark) else element)
        return found


class Punctuated(WatermarkGenerator):
    """A watermark for each record."""

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        output.emit_watermark(event_timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        pass


def test_a_source_without_a_strategy_passes_on_what_its_reader_says() -> None:
    reader = Reader()
    driver = Driver(MONOTONOUS, reader)
    driver.operator = SourceOperator(Given(reader))
    set_up(driver.operator, OperatorContext("task", 0, 1, 128, "Source", clock=driver.clock), driver.output)
    driver.operator.open()

    driver.read(Chunk(["a"], [5]), Watermark(4), IDLE)

    assert driver.out() == [("record", 5), 4, IDLE]
    assert driver.operator.alignment_drift_ms is None


def test_the_strategy_makes_the_watermarks() -> None:
    driver = Driver(WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(10)))

    driver.read(Chunk(["a", "b"], [50, 40]))
    driver.clock.advance(INTERVAL_MS)
    driver.read(Chunk(["c"], [45]))
    driver.clock.advance(INTERVAL_MS)
    driver.operator.process_watermark(MAX_WATERMARK)

    assert driver.out() == [("record", 50), ("record", 40), 39, ("record", 45), MAX_TIMESTAMP]


def test_watermarks_and_statuses_of_the_reader_count_as_well() -> None:
    driver = Driver(MONOTONOUS)

    driver.read(Watermark(7), IDLE, IDLE, Watermark(6), ACTIVE, Watermark(8))

    assert driver.out() == [7, IDLE, ACTIVE, 8]


def test_a_source_without_records_becomes_idle_and_active_again_for_the_last_watermark() -> None:
    driver = Driver(MONOTONOUS.with_idleness(Duration.of_millis(100)))

    driver.clock.advance(50)
    driver.clock.advance(50)
    assert driver.out() == []
    driver.clock.advance(100)
    assert driver.out() == [IDLE]
    driver.operator.process_watermark(MAX_WATERMARK)

    assert driver.out() == [ACTIVE, MAX_TIMESTAMP]


def test_a_bounded_job_in_batch_mode_needs_timestamps_alone() -> None:
    driver = Driver(ALIGNED, emits_watermarks=False)

    driver.read(Chunk(["a"], [50]))
    driver.clock.advance(1_000)

    assert driver.out() == [("record", 50)]
    assert driver.reports == []


class TestSplits:
    def test_the_watermark_is_that_of_the_slowest_open_split(self) -> None:
        driver = Driver(MONOTONOUS, Splits("a", "b"))

        driver.read(("a", 100))
        driver.clock.advance(INTERVAL_MS)
        assert driver.out() == [("record", 100)]
        driver.read(("b", 20))
        driver.clock.advance(INTERVAL_MS)
        assert driver.out() == [("record", 20), 19]
        driver.reader.open_splits.remove(["b"])
        driver.clock.advance(INTERVAL_MS)

        assert driver.out() == [99]

    def test_a_split_that_opens_later_is_found_and_may_be_behind(self) -> None:
        driver = Driver(MONOTONOUS, Splits())

        driver.read(("a", 100))
        driver.reader.open_splits.add(["b"])
        driver.read(("b", 20))
        driver.clock.advance(INTERVAL_MS)
        driver.read(("b", 120))
        driver.clock.advance(INTERVAL_MS)

        assert driver.out() == [("record", 100), ("record", 20), 19, ("record", 120), 119]

    def test_a_generator_that_emits_at_once_is_combined_at_once(self) -> None:
        driver = Driver(WatermarkStrategy.for_generator(Punctuated), Splits("a", "b"))

        driver.read(("a", 100), ("b", 20), ("b", 30), ("b", 200))

        assert driver.out() == [("record", 100), ("record", 20), 20, ("record", 30), 30, ("record", 200), 100]

    def test_an_idle_split_does_not_hold_the_others_back(self) -> None:
        driver = Driver(MONOTONOUS.with_idleness(Duration.of_millis(100)), Splits("a", "b"))

        for timestamp in (10, 20, 30, 40, 50):
            driver.read(("a", timestamp))
            driver.clock.advance(INTERVAL_MS)

        assert [element for element in driver.out() if not isinstance(element, tuple)] == [39, 49]


class LineIsTime(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value)


class TestFiles:
    """Splits that come one by one from the JobManager."""

    def give(self, driver: Driver, path: Path, *timestamps: int) -> None:
        path.write_text("".join(f"{timestamp}\n" for timestamp in timestamps))
        driver.reader.add_splits([FileSplit(str(path), 0, path.stat().st_size)], waiting_bytes=1_000)

    def test_each_file_has_a_watermark_of_its_own_and_holds_nothing_back_once_it_has_ended(
        self, tmp_path: Path
    ) -> None:
        """Files that no reader has begun hold back nothing, either."""
        reader: Any = TextLineReader("UTF-8")
        reader.start(lambda: None)
        driver = Driver(MONOTONOUS.with_timestamp_assigner(LineIsTime()), reader)
        seen = []

        self.give(driver, tmp_path / "behind", 20)
        for name, timestamp in (("ahead", 500), ("behind again", 300)):
            assert driver.operator.emit_next()
            self.give(driver, tmp_path / name, timestamp)
            driver.clock.advance(INTERVAL_MS)
            seen.append(driver.out())
        assert driver.operator.emit_next()
        driver.clock.advance(INTERVAL_MS)
        assert driver.operator.emit_next()
        driver.clock.advance(INTERVAL_MS)

        assert [*seen, driver.out()] == [[("record", 20), 19], [("record", 500), 499], [("record", 300)]]
        assert driver.operator.wait_future() is not None
        assert "0 splits" in repr(driver.operator._event_time), (
            "what has ended is forgotten while the next one is on its way"
        )

    def test_a_source_of_files_waits_for_its_group(self, tmp_path: Path) -> None:
        reader: Any = TextLineReader("UTF-8")
        reader.start(lambda: None)
        driver = Driver(ALIGNED.with_timestamp_assigner(LineIsTime()), reader)
        self.give(driver, tmp_path / "ahead", 1_001)
        assert driver.operator.emit_next()
        driver.clock.advance(300)

        driver.operator.allow_watermark(500)

        assert driver.reports == [1_000, 1_000, 1_000]
        assert driver.operator.is_held_back


class TestAlignment:
    def ahead(self, driver: Driver) -> None:
        """Reports so often that the first watermark counts, and what the group allows is behind it."""
        driver.read(Chunk(["a"], [1_001]))
        driver.clock.advance(300)
        driver.operator.allow_watermark(500)

    def test_a_source_reports_where_it_is(self) -> None:
        driver = Driver(ALIGNED)

        driver.read(Chunk(["a"], [1_001]))
        driver.clock.advance(200)
        driver.operator.finish()

        assert driver.reports == [1_000, 1_000, MAX_TIMESTAMP]

    def test_a_source_that_is_ahead_reads_nothing_until_it_may(self) -> None:
        driver = Driver(ALIGNED)
        self.ahead(driver)
        driver.out()
        num_polls = driver.reader.num_polls

        driver.read(Chunk(["b"], [1_002]))
        future = driver.operator.wait_future()
        assert driver.operator.is_held_back
        assert future is not None
        assert not future.is_done
        assert driver.operator.alignment_drift_ms == 500
        assert driver.reader.num_polls == num_polls
        driver.operator.allow_watermark(999)
        assert not future.is_done
        driver.operator.allow_watermark(1_000)

        assert future.is_done
        assert not driver.operator.is_held_back
        assert driver.operator.emit_next()
        assert driver.out() == [("record", 1_002)]

    def test_a_source_that_is_held_back_is_not_idle(self) -> None:
        strategy = ALIGNED.with_idleness(Duration.of_millis(100))
        driver = Driver(strategy)
        self.ahead(driver)
        driver.out()
        driver.operator.allow_watermark(2_000)
        driver.read(Chunk(["b"], [1_500]))
        driver.clock.advance(INTERVAL_MS)
        driver.operator.allow_watermark(500)
        driver.out()

        for _ in range(10):
            driver.clock.advance(100)

        assert IDLE not in driver.out()

    def test_an_idle_source_holds_nobody_back(self) -> None:
        driver = Driver(ALIGNED.with_idleness(Duration.of_millis(50)))

        driver.read(Chunk(["a"], [11]))
        for _ in range(6):
            driver.clock.advance(INTERVAL_MS)

        assert driver.reports[0] == 10
        assert driver.reports[-1] == MAX_TIMESTAMP

    def test_a_source_that_has_read_its_splits_holds_nobody_back_until_it_gets_others(self) -> None:
        """The second of two hybrid sources begins only when those that are held back have read the first one."""
        driver = Driver(ALIGNED, Splits("a"))
        driver.read(("a", 11))
        driver.clock.advance(2 * INTERVAL_MS)

        driver.reader.open_splits.remove(["a"])
        driver.clock.advance(2 * INTERVAL_MS)
        assert driver.reports == [10, MAX_TIMESTAMP]
        driver.reader.open_splits.add(["b"])
        driver.read(("b", 21))
        driver.clock.advance(2 * INTERVAL_MS)

        assert driver.reports == [10, MAX_TIMESTAMP, 20]

    def test_a_split_that_is_ahead_is_paused_alone(self) -> None:
        driver = Driver(ALIGNED.with_idleness(Duration.of_millis(100)), Splits("a", "b"))
        driver.operator.allow_watermark(100)

        driver.read(("a", 201), ("b", 20))
        driver.clock.advance(INTERVAL_MS)
        assert driver.reader.orders == [(["a"], [])]
        driver.clock.advance(INTERVAL_MS)
        driver.read(("b", 30))
        driver.clock.advance(INTERVAL_MS)
        driver.operator.allow_watermark(200)

        assert driver.reader.orders == [(["a"], []), ([], ["a"])]
        assert not driver.operator.is_held_back

    def test_nobody_waits_where_nobody_listens(self) -> None:
        driver = Driver(MONOTONOUS)

        self.ahead(driver)

        assert driver.reports == []
        assert not driver.operator.is_held_back
