from collections.abc import Iterator
from typing import Any

import pytest

from flowlet.chain.chunking_output import ChunkingOutput
from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.operator_output import OperatorOutput, StandaloneOutput
from flowlet.chain.stream_operator import OperatorCounters, StreamOperator
from flowlet.common.types import Row
from flowlet.datastream import OutputTag, ProcessFunction
from flowlet.errors import UserFunctionError
from flowlet.operators.process_operator import FilterOperator, FlatMapOperator, MapOperator, ProcessOperator
from flowlet.records import IDLE, MIN_TIMESTAMP, Chunk, LatencyMarker, Watermark
from flowlet.sinks.function_sink import DiscardSink
from tests.flowlet.operators.chains import chain_of, counts_of
from tests.flowlet.operators.harness import RecordingOutput

LATE = OutputTag("late")
MARKER = LatencyMarker(1, bytes(16), 0)


def same(value: Any) -> Any:
    return value


class Sort(ProcessFunction):
    """Odd ones late, multiples of three twice."""

    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterator[Any]:
        if value % 2:
            yield LATE, value
        else:
            yield value
        if value % 3 == 0:
            yield LATE, -value
            yield -value


# ---------------------------------------------------------------- several consumers


def test_consumers_have_their_turn_one_after_the_other_with_each_record() -> None:
    """Each with all that is behind it; in the order of the chain."""
    log: list[str] = []

    def note(name: str) -> Any:
        def noting(value: Any) -> Any:
            log.append(f"{name} {value}")
            return value

        return noting

    chained = [
        ChainedOperator(MapOperator(note("head"))),
        ChainedOperator(MapOperator(note("left")), 0),
        ChainedOperator(MapOperator(note("behind left")), 1),
        ChainedOperator(MapOperator(note("right")), 0),
    ]
    chain = chain_of(chained, {})

    chain.process_chunk(Chunk([1, 2]))

    assert log == [f"{name} {value}" for value in (1, 2) for name in ("head", "left", "behind left", "right")]


@pytest.mark.parametrize("record", [[1], {"a": [1]}, Row([1]), ([1],)], ids=repr)
def test_no_consumer_sees_what_another_one_did_with_a_record(record: Any) -> None:
    """PyFlink gives each of several operators a record of its own; an only consumer gets the very record."""
    seen: list[Any] = []

    def changing(value: Any) -> Any:
        inner = value[0] if type(value) in (tuple, Row) else value["a"] if type(value) is dict else value
        inner.append("changed")
        return value

    def noting(value: Any) -> Any:
        seen.append((value is record, repr(value)))
        return value

    before = repr(record)
    chained = [
        ChainedOperator(MapOperator(same)),
        ChainedOperator(MapOperator(changing), 0),
        ChainedOperator(MapOperator(noting), 0),
        ChainedOperator(MapOperator(noting), 2),
        ChainedOperator(MapOperator(noting), 0),
    ]

    chain_of(chained, {}).process_chunk(Chunk([record]))

    assert seen == [(False, before), (False, before), (True, before)]


def test_a_record_that_cannot_change_is_the_same_for_every_consumer() -> None:
    record, seen = ("text", 1.5, (2, None)), []

    def noting(value: Any) -> Any:
        seen.append(value is record)
        return value

    chained = [
        ChainedOperator(MapOperator(same)),
        ChainedOperator(MapOperator(noting), 0),
        ChainedOperator(MapOperator(noting), 0),
    ]

    chain_of(chained, {}).process_chunk(Chunk([record]))

    assert seen == [True, True]


def test_every_consumer_gets_every_record_and_each_is_counted_once() -> None:
    edges = [RecordingOutput(), RecordingOutput()]
    branch = RecordingOutput()
    chained = [
        ChainedOperator(FlatMapOperator(lambda value: [value] * value)),
        ChainedOperator(FilterOperator(lambda value: value % 2), 0),
        ChainedOperator(DiscardSink(), 0),
    ]
    chain = chain_of(chained, {(0, None): edges, (1, None): [branch]})

    for _ in range(2):
        chain.process_chunk(Chunk([1, 2, 3], [10, 20, 30]))

    assert [edge.values for edge in edges] == [[1, 2, 2, 3, 3, 3] * 2] * 2
    assert [edge.timestamps for edge in edges] == [[10, 20, 20, 30, 30, 30] * 2] * 2
    assert branch.values == [1, 3, 3, 3] * 2
    assert counts_of(chain) == [(6, 12), (12, 8), (12, 0)]
    assert chain.num_records_out == 20


def test_an_output_that_nobody_reads_counts_what_it_is_given() -> None:
    for operator in (
        MapOperator(same),
        FlatMapOperator(lambda value: [value] * 2),
        FilterOperator(lambda value: value > 1),
    ):
        chain = chain_of([ChainedOperator(operator)], {})

        chain.process_chunk(Chunk([1, 2, 3]))
        chain.process_control(Watermark(1))
        chain.process_control(IDLE)
        chain.process_control(MARKER)

        assert counts_of(chain)[0][1] == {"Map": 3, "Flat Map": 6, "Filter": 2}[operator.name]


def test_what_one_consumer_does_before_another_fails_stays_done() -> None:
    sunk: list[Any] = []

    def fail(value: int) -> int:
        return 1 // (2 - value)

    output = RecordingOutput()
    chained = [
        ChainedOperator(MapOperator(same)),
        ChainedOperator(MapOperator(sunk.append), 0),
        ChainedOperator(MapOperator(fail, name="fails"), 0),
    ]
    chain = chain_of(chained, {(0, None): [output]})

    with pytest.raises(UserFunctionError, match="'fails'"):
        chain.process_chunk(Chunk([1, 2, 3]))

    assert sunk == [1, 2]
    assert output.values == [1]


# ---------------------------------------------------------------- side outputs


@pytest.mark.parametrize("timestamps", [None, [10, 20, 30, 40, 50, 60]])
def test_a_side_output_gets_its_own_records_and_the_main_one_the_others(timestamps: list[int] | None) -> None:
    """Edges and operators of the chain get the records in the order of emission, with their timestamps."""
    main, late, mapped = RecordingOutput(), RecordingOutput(), RecordingOutput()
    chained = [
        ChainedOperator(MapOperator(same)),
        ChainedOperator(ProcessOperator(Sort()), 0),
        ChainedOperator(MapOperator(str), 1, tag="late"),
    ]
    chain = chain_of(chained, {(1, None): [main], (1, "late"): [late], (2, None): [mapped]})

    chain.process_chunk(Chunk([1, 2, 3, 4, 5, 6], timestamps))

    assert main.values == [2, -3, 4, 6, -6]
    assert late.values == [1, 3, -3, 5, -6]
    assert mapped.values == ["1", "3", "-3", "5", "-6"]
    assert main.timestamps == ([None] * 5 if timestamps is None else [20, 30, 40, 60, 60])
    assert late.timestamps == mapped.timestamps == ([None] * 5 if timestamps is None else [10, 30, 30, 50, 60])
    assert counts_of(chain) == [(6, 6), (6, 10), (5, 5)]


def test_a_side_output_that_nobody_reads_is_dropped() -> None:
    main = RecordingOutput()
    chain = chain_of([ChainedOperator(ProcessOperator(Sort()))], {(0, None): [main]})

    chain.process_chunk(Chunk([1, 2, 3]))

    assert main.values == [2, -3]
    assert counts_of(chain) == [(3, 2)]


def test_a_failure_behind_a_side_output_names_the_operator_there() -> None:
    chained = [
        ChainedOperator(ProcessOperator(Sort())),
        ChainedOperator(MapOperator(lambda value: 1 // (value - 3), name="late map"), 0, tag="late"),
    ]
    main = RecordingOutput()
    chain = chain_of(chained, {(0, None): [main]})

    with pytest.raises(UserFunctionError) as caught:
        chain.process_chunk(Chunk([1, 2, 3, 4]))

    assert (caught.value.operator, caught.value.record_preview) == ("late map", "3")
    assert main.values == [2]


def test_a_record_may_go_to_both_outputs_and_change_in_between() -> None:
    class Both(ProcessFunction):
        def process_element(self, value: list[int], ctx: ProcessFunction.Context) -> Iterator[Any]:
            yield LATE, value
            value.append(0)
            yield value

    main, late = RecordingOutput(), RecordingOutput()
    chain = chain_of([ChainedOperator(ProcessOperator(Both()))], {(0, None): [main], (0, "late"): [late]})

    chain.process_chunk(Chunk([[1], [2]]))

    assert (main.values, late.values) == ([[1, 0], [2, 0]], [[1], [2]])


# ---------------------------------------------------------------- watermarks, statuses, markers


def test_control_elements_come_to_every_consumer_behind_the_records() -> None:
    """Watermarks and idleness reach all consumers, side outputs included, behind the records; a latency marker reaches
    one consumer.
    """
    main, late, mapped = RecordingOutput(), RecordingOutput(), RecordingOutput()
    chained = [ChainedOperator(ProcessOperator(Sort())), ChainedOperator(MapOperator(same), 0)]
    chain = chain_of(chained, {(0, None): [main], (0, "late"): [late], (1, None): [mapped]})

    chain.process_chunk(Chunk([1, 2]))
    chain.process_control(Watermark(5))
    chain.process_control(IDLE)
    chain.process_control(MARKER)

    found = [[element for element in output.elements if element != MARKER] for output in (main, late, mapped)]
    assert found == [
        [Chunk([2]), Watermark(5), IDLE],
        [Chunk([1]), Watermark(5), IDLE],
        [Chunk([2]), Watermark(5), IDLE],
    ]
    assert sum(output.elements.count(MARKER) for output in (main, late, mapped)) == 1
    assert (chain.output_watermark(0), chain.output_watermark(1)) == (5, 5)


class Marking(StreamOperator):
    """Speaks in the middle of a record."""

    name = "marking"

    def process_chunk(self, chunk: Chunk) -> None:
        self.output.collect(chunk)
        self.output.emit_control(Watermark(chunk.values[-1]))


def test_a_watermark_in_the_middle_of_a_chunk_comes_behind_the_records_before_it() -> None:
    output = RecordingOutput()
    chained = [ChainedOperator(MapOperator(same)), ChainedOperator(Marking(), 0), ChainedOperator(MapOperator(same), 1)]
    chain = chain_of(chained, {(2, None): [output]})

    chain.process_chunk(Chunk([1, 2]))

    assert output.elements == [Chunk([1]), Watermark(1), Chunk([2]), Watermark(2)]
    assert chain.output_watermark(2) == 2


# ---------------------------------------------------------------- by themselves


def output_of(
    main: list[RecordingOutput], sides: dict[str, list[RecordingOutput]]
) -> tuple[OperatorOutput, OperatorCounters]:
    counters = OperatorCounters()
    consumers = {tag: [ChunkingOutput(output) for output in outputs] for tag, outputs in sides.items()}
    return OperatorOutput("test", [ChunkingOutput(output) for output in main], consumers, counters), counters


def test_a_side_output_sees_only_its_own_records() -> None:
    main, side = RecordingOutput(), RecordingOutput()
    output, counters = output_of([main], {"late": [side]})

    output.collect(Chunk([1]))
    output.collect(Chunk([]))
    output.collect_side("late", Chunk([2]))
    output.collect_side("nobody reads it", Chunk([3]))
    output.emit_side("late", 4, 7)
    output.emit_side("nobody reads it", 5, None)
    output.emit_control(Watermark(5))

    assert main.elements == [Chunk([1]), Watermark(5)]
    assert side.elements == [Chunk([2]), Chunk([4], [7]), Watermark(5)]
    assert counters.num_records_out == 3
    assert output.current_watermark == 5


def test_a_latency_marker_goes_to_one_consumer_of_any_output() -> None:
    consumers = [RecordingOutput() for _ in range(3)]
    output, _ = output_of(consumers[:2], {"late": consumers[2:]})

    for _ in range(20):
        output.emit_control(MARKER)

    assert sum(len(consumer.elements) for consumer in consumers) == 20


def test_an_output_without_consumers_takes_everything() -> None:
    output, counters = output_of([], {})

    output.collect(Chunk([1, [2]]))
    output.collect_each([1], None, 1)
    output.emit_control(Watermark(1))
    output.emit_control(IDLE)
    output.emit_control(MARKER)
    output.drain()

    assert counters.num_records_out == 3
    assert output.current_watermark == 1
    assert output.takes_whole(Chunk([1]))


def test_an_output_says_whether_a_function_looks_at_single_records() -> None:
    output, _ = output_of([RecordingOutput()], {})
    chain = chain_of([ChainedOperator(MapOperator(same)), ChainedOperator(MapOperator(same), 0)], {})
    head = chain.head
    assert isinstance(head, MapOperator)

    assert output.takes_whole(Chunk(["a"]))
    assert not output.takes_whole(Chunk([["a"]]))
    assert isinstance(head.output, OperatorOutput)
    assert not head.output.takes_whole(Chunk(["a"]))


def test_before_the_first_watermark_there_is_the_smallest() -> None:
    output, _ = output_of([], {})

    assert output.current_watermark == MIN_TIMESTAMP
    assert repr(output) == f"<OperatorOutput at {MIN_TIMESTAMP}: []>"


def test_an_operator_outside_of_a_chain_sends_every_side_output_to_the_same_place() -> None:
    target = RecordingOutput()
    counters = OperatorCounters()
    output = StandaloneOutput("test", target, counters)

    output.collect(Chunk([1]))
    output.emit_side("late", 2, None)
    output.emit_side("late", [3], 7)
    output.collect_side("other", Chunk([4]))
    output.emit_control(Watermark(1))

    assert target.elements == [Chunk([1]), Watermark(1)]
    assert target.sides == {"late": [2, [3]], "other": [4]}
    assert counters.num_records_out == 1
