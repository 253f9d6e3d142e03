"""The ends of measured jobs notice everything that could be wrong."""

from pathlib import Path
from typing import Any

import pytest

from bench.jobs.checked import (
    CheckedSink,
    Keep,
    Reports,
    SinkReport,
    WrongOutputError,
    check_increments,
    check_last_values,
    check_num_outputs,
)
from flowlet.chain.stream_operator import OperatorContext
from flowlet.columns import columns_of
from flowlet.records import Chunk
from flowlet.testing.operator_harness import RecordingOutput
from tests.flowlet.operators.harness import set_up

ALL = Keep(0, 1_000_000)


def report_of(
    folder: Path,
    chunks: list[list[tuple[Any, Any]]],
    keep: Keep = ALL,
    *,
    inspects_all: bool = False,
    has_columns: bool = False,
) -> Reports:
    """Return the report that a sink writes about these chunks."""
    sink = CheckedSink(folder, keep, inspects_all=inspects_all)
    set_up(sink, OperatorContext("task", 0, 1, 128, sink.name), RecordingOutput())
    (folder / "start-0").write_text("1", encoding="ascii")
    for values in chunks:
        columns = columns_of(values) if has_columns else None
        sink.process_chunk(Chunk(list(values)) if columns is None else Chunk.of_columns(columns))
    sink.finish()
    return Reports.read(folder)


def test_a_sink_keeps_whole_chunks_of_columns_that_cover_the_last_records(tmp_path: Path) -> None:
    chunks = [[(number, number), (number + 1, number)] for number in range(0, 20, 2)]

    reports = report_of(tmp_path, chunks, Keep(4, 3), has_columns=True)

    assert reports.sinks[0].num_records == 20
    assert reports.sinks[0].last == {16: 16, 17: 16, 18: 18, 19: 18}  # four: two chunks of two, so that three are there
    assert reports.seconds > 0


def test_a_sink_keeps_the_last_values_of_single_records(tmp_path: Path) -> None:
    chunks = [[(number % 4, number), (9, number)] for number in range(10)]

    reports = report_of(tmp_path, chunks, Keep(14, 3))

    assert reports.sinks[0].last == {9: 9, 3: 7, 0: 8, 1: 9}


def test_a_sink_keeps_nothing_before_its_first_record_to_keep(tmp_path: Path) -> None:
    reports = report_of(tmp_path, [[("a", 1)], [("b", 1)], [("c", 1)]], Keep(2, 100))

    assert reports.sinks[0].last == {"c": 1}


def test_what_is_kept_covers_two_cycles_of_a_subtask_with_an_average_share() -> None:
    keep = Keep.last_cycles(1_000_000, 100_000)

    assert keep.num_records >= 100_000
    assert keep.from_record <= 500_000 - 100_000
    assert Keep.last_cycles(1000, 600).from_record == 0


def test_a_job_that_reported_nothing_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(WrongOutputError, match="0 sources and 0 sinks"):
        Reports.read(tmp_path)


def test_lost_and_doubled_records_are_noticed(tmp_path: Path) -> None:
    reports = report_of(tmp_path, [[("a", 1), ("b", 1)], [("a", 2)]])

    check_num_outputs(reports, 3)
    check_last_values(reports, {"a": 2, "b": 1})
    with pytest.raises(WrongOutputError, match="3 outputs instead of 4"):
        check_num_outputs(reports, 4)
    with pytest.raises(WrongOutputError, match="'a' ended at 2 instead of 3"):
        check_last_values(reports, {"a": 3, "b": 1})
    with pytest.raises(WrongOutputError, match="'c' ended at None instead of 1"):
        check_last_values(reports, {"a": 2, "b": 1, "c": 1})
    with pytest.raises(WrongOutputError, match="'b' ended at 1 instead of None"):
        check_last_values(reports, {"a": 2})


def test_a_key_at_two_subtasks_is_noticed() -> None:
    reports = Reports(0, (SinkReport(1, 1, {"a": 1}), SinkReport(1, 1, {"a": 1})))

    with pytest.raises(WrongOutputError, match="1 keys were at two subtasks, such as 'a'"):
        check_last_values(reports, {"a": 1})


SOURCES: list[dict[str, list[int]]] = [{"a": [2, 4], "b": [3]}, {"a": [5]}]


@pytest.mark.parametrize("first", [[2, 7, 11], [5, 7, 11], [2, 6, 11]])
def test_records_of_two_sources_may_come_in_any_order_that_keeps_that_of_each(tmp_path: Path, first: list[int]) -> None:
    """Records (a, 2), (a, 4), (b, 3) of one source and (a, 5) of another may come in any order that keeps that of each
    source.
    """
    reports = report_of(tmp_path, [[*(("a", value) for value in first), ("b", 3)]], inspects_all=True)

    check_increments(reports, SOURCES)


@pytest.mark.parametrize(
    ("outputs", "complaint"),
    [
        ([("a", 4), ("a", 6), ("a", 11), ("b", 3)], "changed their order"),
        ([("a", 2), ("a", 11), ("b", 3)], "grew by other values"),
        ([("a", 2), ("a", 7), ("a", 11)], "1 keys came out instead of 2"),
    ],
)
def test_lost_and_swapped_records_are_noticed(tmp_path: Path, outputs: list[tuple[str, int]], complaint: str) -> None:
    reports = report_of(tmp_path, [outputs], inspects_all=True)

    with pytest.raises(WrongOutputError, match=complaint):
        check_increments(reports, SOURCES)
