from typing import Any

import pytest

from flowlet.chain.operator_chain import ChainedOperator, OperatorChain
from flowlet.chain.stream_operator import OperatorContext, StreamOperator
from flowlet.errors import UserFunctionError
from flowlet.operators.keyed_aggregation_operator import KeyedSumOperator
from flowlet.operators.process_operator import FilterOperator, FlatMapOperator, MapOperator
from flowlet.records import ACTIVE, IDLE, Chunk, CompletionMark, Watermark
from flowlet.sinks.function_sink import DiscardSink
from tests.flowlet.operators.chains import chain_of, counts_of
from tests.flowlet.operators.harness import Harness, RecordingOutput


class Logging(StreamOperator):
    """Passes everything on and writes down its life."""

    def __init__(self, name: str, log: list[str], fail_at: str = "") -> None:
        self.name = name
        self.log = log
        self.fail_at = fail_at

    def _note(self, event: str) -> None:
        self.log.append(f"{event} {self.name}")
        if event == self.fail_at:
            raise OSError(f"{event} {self.name} failed")

    def open(self) -> None:
        self._note("open")

    def process_chunk(self, chunk: Chunk) -> None:
        self._note("process")
        self.output.collect(chunk)

    def finish(self) -> None:
        self._note("finish")
        self.output.collect(Chunk([f"last of {self.name}"]))

    def close(self) -> None:
        self._note("close")


def context(index: int, name: str) -> OperatorContext:
    return OperatorContext("task", 1, 2, 128, name)


def line(*operators: StreamOperator) -> list[ChainedOperator]:
    return [ChainedOperator(operator, index - 1) for index, operator in enumerate(operators)]


def test_records_go_down_the_chain_and_out_of_the_edge() -> None:
    output = RecordingOutput()
    chain = chain_of(
        line(FlatMapOperator(str.split), FilterOperator(lambda word: word != "x"), MapOperator(lambda word: (word, 1))),
        {(2, None): [output]},
    )

    chain.process_chunk(Chunk(["a x b", "x", "c"]))

    assert output.values == [("a", 1), ("b", 1), ("c", 1)]
    assert (chain.num_records_in, chain.num_records_out) == (3, 3)
    assert counts_of(chain) == [(3, 5), (5, 3), (3, 3)]


def test_operators_live_in_the_right_order() -> None:
    """Operators are opened last to first, finished and closed first to last; results of ``finish`` are still processed
    further down.
    """
    log: list[str] = []
    output = RecordingOutput()
    chain = OperatorChain(line(*(Logging(name, log) for name in "abc")), {(2, None): [output]}, context)

    chain.open()
    chain.finish()
    chain.close()
    chain.close()

    assert log[:3] == ["open c", "open b", "open a"]
    assert log[3:9] == ["finish a", "process b", "process c", "finish b", "process c", "finish c"]
    assert log[9:] == ["close a", "close b", "close c"]
    assert output.values == ["last of a", "last of b", "last of c"]


def test_every_operator_is_closed_whatever_the_others_raise() -> None:
    log: list[str] = []
    chain = chain_of(line(Logging("a", log, "close"), Logging("b", log), Logging("c", log, "close")), {})

    with pytest.raises(OSError, match="close a failed") as caught:
        chain.close()

    assert log[3:] == ["close a", "close b", "close c"]
    assert caught.value.__notes__ == ["then OSError: close c failed"]


def test_only_operators_whose_open_was_called_are_closed() -> None:
    """An operator whose ``open`` failed is closed, too: it may have taken something."""
    log: list[str] = []
    chain = OperatorChain(line(Logging("a", log), Logging("b", log, "open"), Logging("c", log)), {}, context)

    with pytest.raises(OSError, match="open b failed"):
        chain.open()
    chain.close()

    assert log == ["open c", "open b", "close b", "close c"]


def test_a_record_passes_the_whole_chain_before_the_next_one_is_looked_at() -> None:
    """State that one function leaves behind (a global, an attribute) reaches the next one as that record left it."""
    last: dict[str, int] = {}
    output = RecordingOutput()

    def write(value: int) -> int:
        last["seen"] = value
        return value

    chain = chain_of(
        line(
            MapOperator(write),
            FilterOperator(lambda value: last["seen"] == value),
            MapOperator(lambda value: (value, last["seen"])),
        ),
        {(2, None): [output]},
    )

    chain.process_chunk(Chunk([1, 2, 3]))

    assert output.values == [(1, 1), (2, 2), (3, 3)]


def test_an_only_operator_is_handed_the_very_object_and_branches_do_not_see_each_other() -> None:
    """Operators in a line share their records, branches of a chain do not, as with PyFlink's Python operators."""
    head, output = [1], RecordingOutput()
    seen: list[Any] = []

    def keep(record: list[int]) -> list[int]:
        seen.append(record)
        return record

    def spoil(record: list[int]) -> list[int]:
        record.append(0)
        return record

    chained = [
        ChainedOperator(MapOperator(keep)),
        ChainedOperator(MapOperator(spoil), 0),
        ChainedOperator(MapOperator(spoil), 0),
    ]
    chain = chain_of(chained, {(0, None): [output], (1, None): [output], (2, None): [output]})

    chain.process_chunk(Chunk([head]))

    assert seen[0] is head
    assert sorted(output.values) == [[1], [1, 0], [1, 0]]


def test_a_chain_without_outputs_counts_and_ends() -> None:
    chain = chain_of(line(MapOperator(lambda value: value), DiscardSink()), {})

    chain.process_chunk(Chunk([1, 2, 3]))
    chain.process_control(Watermark(1))
    chain.process_control(IDLE)
    chain.finish()
    chain.close()

    assert (chain.num_records_in, chain.num_records_out) == (3, 0)
    assert counts_of(chain) == [(3, 3), (3, 0)]


def test_a_failure_names_the_operator_in_which_it_happened() -> None:
    chain = chain_of(
        line(MapOperator(lambda value: value, name="first"), MapOperator(lambda value: 1 / value, name="second")),
        {},
        subtask=1,
    )

    with pytest.raises(UserFunctionError) as caught:
        chain.process_chunk(Chunk([1, 0, 2]))

    assert (caught.value.operator, caught.value.subtask, caught.value.record_preview) == ("second", 1, "0")


def test_final_results_go_through_the_rest_of_the_chain() -> None:
    output = RecordingOutput()
    chain = chain_of(
        line(KeyedSumOperator(lambda pair: pair[0], 1, emit_on_finish=True), MapOperator(lambda pair: pair[1])),
        {(1, None): [output]},
    )
    chain.process_chunk(Chunk([("a", 1), ("b", 2), ("a", 3)]))
    assert output.elements == []

    chain.finish()

    assert output.values == [4, 2]


def test_names_in_repr() -> None:
    chain = OperatorChain(line(MapOperator(str, name="a"), DiscardSink(name="b")), {}, context)

    assert repr(chain) == "<OperatorChain a -> b, 0 open>"
    assert chain.head.name == "a"


class Holding(StreamOperator):
    """Keeps marks until it is told to let them go."""

    def __init__(self) -> None:
        self.name = "holding"
        self.held: list[CompletionMark] = []

    def process_chunk(self, chunk: Chunk) -> None:
        self.output.collect(chunk)

    def process_mark(self, mark: CompletionMark) -> None:
        self.held.append(mark)


def test_a_mark_has_passed_the_chain_when_it_has_left_every_end() -> None:
    """The mark comes behind the records on edges and side outputs as well; an operator that holds it in one branch
    holds it back for all.
    """
    holding, main, side = Holding(), RecordingOutput(), RecordingOutput()
    chained = [
        ChainedOperator(MapOperator(str)),
        ChainedOperator(holding, 0),
        ChainedOperator(DiscardSink(), 1),
        ChainedOperator(FilterOperator(bool), 0),
    ]
    chain = OperatorChain(chained, {(0, None): [main], (3, "side"): [side]}, context)
    passed: list[int] = []
    chain.on_mark_passed = passed.append
    chain.open()

    chain.process_chunk(Chunk([1]))
    chain.process_control(CompletionMark(7))
    assert passed == []
    holding.output.emit_control(holding.held.pop())

    assert passed == [7]
    assert main.elements == [Chunk(["1"]), CompletionMark(7)]
    assert side.elements == [CompletionMark(7)]
    chain.close()


def test_a_chain_that_nobody_listens_to_passes_marks_on() -> None:
    output = RecordingOutput()
    chain = OperatorChain(line(MapOperator(str)), {(0, None): [output]}, context)

    chain.process_control(CompletionMark(1))

    assert output.elements == [CompletionMark(1)]


class Minimal(StreamOperator):
    """A hand-written operator with no more than it needs: a name."""

    name = "minimal"


def test_an_operator_needs_a_name_only_and_takes_no_input_then() -> None:
    harness = Harness(Minimal())

    harness.operator.process_watermark(Watermark(1))
    harness.operator.process_watermark_status(ACTIVE)
    harness.operator.finish()
    harness.operator.close()

    assert harness.output.elements == [Watermark(1), ACTIVE]
    assert repr(harness.operator) == "<Minimal 'minimal'>"
    with pytest.raises(TypeError, match="Minimal, takes no input"):
        Minimal().process_chunk(Chunk([1]))


def test_every_context_has_counters_of_its_own() -> None:
    first, second = (OperatorContext("task", 0, 1, 128, "map") for _ in range(2))

    first.counters.num_records_in += 1

    assert second.counters.num_records_in == 0
