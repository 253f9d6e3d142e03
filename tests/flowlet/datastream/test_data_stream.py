"""Promises of ``DataStream``, ``KeyedStream`` and ``DataStreamSink``."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest

from flowlet.common import Types
from flowlet.datastream import (
    DataStream,
    DataStreamSink,
    FlatMapFunction,
    KeyedProcessFunction,
    KeyedStream,
    KeySelector,
    OutputTag,
    ProcessFunction,
    SlotSharingGroup,
)
from flowlet.datastream.connectors import DiscardingSink
from flowlet.errors import JobGraphError
from flowlet.graph.partitioner import Broadcast, Forward, KeyGroups, Partitioner, Rebalance
from flowlet.graph.stream_graph import StreamGraph, StreamNode
from flowlet.graph.transformation import ChainingStrategy, OperatorTransformation
from tests.flowlet.datastream.captured_graphs import new_environment


class Passing(ProcessFunction):
    def process_element(self, value: int, ctx: ProcessFunction.Context) -> list[int]:
        return [value]


def last_node(graph: StreamGraph) -> StreamNode:
    return graph.nodes[len(graph.nodes)]


class Split(FlatMapFunction):
    def flat_map(self, value: str) -> list[str]:
        return value.split()


class FirstField(KeySelector):
    def get_key(self, value: tuple[str, int]) -> str:
        return value[0]


def test_a_word_count_becomes_its_operators() -> None:
    environment, graph = new_environment()
    split = Split()

    environment.from_collection(["to be"]).flat_map(split).map(str.lower).filter(bool).map(
        lambda word: (word, 1)
    ).key_by(FirstField()).sum(1).print()

    nodes = list(graph().nodes.values())
    steps = ["FlatMap", "Map", "Filter", "Map", "Sum"]
    assert [node.name for node in nodes] == ["Source: Collection Source", *steps, "Sink: Print to Std. Out"]
    assert [node.parallelism for node in nodes] == [1, 2, 2, 2, 2, 2, 2]
    flat_map, mapped, kept, summed, printed = (nodes[index].transformation.factory for index in (1, 2, 3, 5, 6))
    assert flat_map.target.endswith(":FlatMapOperator")
    assert flat_map.arguments["function"] is split
    assert mapped.target.endswith(":MapOperator")
    assert mapped.arguments["function"] is str.lower
    assert kept.target.endswith(":FilterOperator")
    assert kept.arguments["function"] is bool
    assert summed.target.endswith(":KeyedSumOperator")
    assert summed.arguments["position"] == 1
    assert isinstance(summed.arguments["key_selector"], FirstField)
    assert printed.target.endswith(":PrintSink")
    assert printed.arguments["identifier"] is None


def test_a_reduction_keeps_its_function_and_key() -> None:
    environment, graph = new_environment()

    environment.from_collection([1, 2]).key_by(abs).reduce(max)

    reduced = last_node(graph()).transformation
    assert reduced.factory.target.endswith(":KeyedReduceOperator")
    arguments = reduced.factory.arguments
    assert (arguments["reduce_function"], arguments["key_selector"], reduced.name) == (max, abs, "Reduce")


@pytest.mark.parametrize(
    ("partition", "partitioner"),
    [
        (lambda stream: stream.rebalance(), Rebalance()),
        (lambda stream: stream.broadcast(), Broadcast()),
        (lambda stream: stream.forward(), Forward()),
        (lambda stream: stream.key_by(abs), KeyGroups(abs, 128)),
        (lambda stream: stream.key_by(str).key_by(abs), KeyGroups(abs, 128)),
        (lambda stream: stream.rebalance().key_by(abs), KeyGroups(abs, 128)),
        (lambda stream: stream, Forward()),
    ],
)
def test_a_partitioning_is_that_of_the_next_operator(
    partition: Callable[[DataStream], DataStream], partitioner: Partitioner
) -> None:
    environment, graph = new_environment()
    mapped = environment.from_collection([1]).map(abs)

    partition(mapped).map(str)

    assert graph().edges[-1].partitioner == partitioner


@pytest.mark.parametrize(
    ("change", "field", "expected"),
    [
        (lambda stream: stream.name("other"), "name", "other"),
        (lambda stream: stream.set_description("why"), "description", "why"),
        (lambda stream: stream.set_parallelism(5), "parallelism", 5),
        (lambda stream: stream.set_max_parallelism(7), "max_parallelism", 7),
        (lambda stream: stream.set_buffer_timeout(0), "buffer_timeout_ms", 0),
        (lambda stream: stream.set_buffer_timeout(5).set_buffer_timeout(-1), "buffer_timeout_ms", 100),
        (lambda stream: stream.disable_chaining(), "transformation.chaining", ChainingStrategy.NEVER),
        (lambda stream: stream.start_new_chain(), "transformation.chaining", ChainingStrategy.HEAD),
        (lambda stream: stream.slot_sharing_group("heavy"), "slot_sharing_group", "heavy"),
        (lambda stream: stream.slot_sharing_group(SlotSharingGroup("heavy")), "slot_sharing_group", "heavy"),
        (lambda stream: stream.force_non_parallel(), "parallelism", 1),
        (lambda stream: stream.force_non_parallel(), "max_parallelism", 1),
    ],
)
def test_settings_reach_the_node_and_return_the_stream(
    change: Callable[[DataStream], DataStream], field: str, expected: object
) -> None:
    environment, graph = new_environment()
    mapped = environment.from_collection([1]).map(abs)

    assert change(mapped) is mapped

    assert attrgetter(field)(last_node(graph())) == expected


def test_a_sink_has_settings_too() -> None:
    environment, graph = new_environment()
    sink = DiscardingSink()

    written = environment.from_collection([1]).sink_to(sink)
    result = (
        written.name("nowhere")
        .uid("end")
        .set_parallelism(1)
        .set_description("why")
        .disable_chaining()
        .slot_sharing_group("heavy")
    )

    assert result is written
    assert isinstance(written, DataStreamSink)
    node = last_node(graph())
    assert (node.name, node.description) == ("nowhere: Writer", "why")
    assert (node.parallelism, node.slot_sharing_group) == (1, "heavy")
    assert node.transformation.chaining is ChainingStrategy.NEVER
    assert node.transformation.factory.arguments["sink"] is sink
    assert node.transformation.uid == "end"


def test_printing_keeps_its_identifier_on_keyed_streams_too() -> None:
    environment, graph = new_environment()

    environment.from_collection([1]).key_by(abs).print("numbers")

    printed = last_node(graph()).transformation
    assert printed.factory.target.endswith(":PrintSink")
    assert printed.factory.arguments["identifier"] == "numbers"


def test_keyed_streams_map_within_their_partitioning() -> None:
    environment, graph = new_environment()
    keyed = environment.from_collection([1]).key_by(abs)

    keyed.map(str)
    keyed.flat_map(range)
    keyed.filter(bool)

    edges = graph().edges
    assert len(edges) == 3
    assert {type(edge.partitioner) for edge in edges} == {KeyGroups}


def test_types_are_declared_or_inherited() -> None:
    environment, _ = new_environment()
    numbers = environment.from_collection([1], Types.INT())

    assert numbers.get_type() == Types.INT()
    assert numbers.filter(bool).get_type() == Types.INT()
    assert numbers.rebalance().get_type() == Types.INT()
    assert numbers.key_by(abs, Types.INT()).reduce(max).get_type() == Types.INT()
    assert numbers.key_by(abs).sum().get_type() == Types.INT()
    assert numbers.map(str).get_type() == Types.PICKLED_BYTE_ARRAY()
    assert numbers.map(str, Types.STRING()).get_type() == Types.STRING()
    assert numbers.flat_map(range, output_type=Types.LONG()).get_type() == Types.LONG()


def test_a_stream_knows_its_name_and_environment() -> None:
    environment, _ = new_environment()
    stream = environment.from_collection([1])

    assert stream.get_name() == "Collection Source"
    assert stream.map(abs).get_name() == "Map"
    assert stream.get_execution_environment() is environment
    assert stream.get_execution_config() is environment.get_config()


METHODS_OF_KEYED_STREAMS = sorted(set(vars(KeyedStream)) - set(dir(DataStream)))


@pytest.mark.parametrize("method", [each for each in METHODS_OF_KEYED_STREAMS if each[0].islower()])
def test_methods_of_keyed_streams_say_that_they_need_a_key(method: str) -> None:
    environment, _ = new_environment()
    stream = environment.from_collection([1])

    with pytest.raises(JobGraphError, match=rf"{method}\(\) needs a keyed stream: call key_by"):
        getattr(stream, method)(max)
    assert not hasattr(stream, method)


@pytest.mark.parametrize("method", ["cache", "no_such_method"])
def test_what_this_version_cannot_do_is_absent(method: str) -> None:
    environment, _ = new_environment()
    stream = environment.from_collection([1])

    with pytest.raises(AttributeError, match=f"'DataStream' object has no attribute '{method}'"):
        getattr(stream, method)
    assert not hasattr(stream.key_by(abs), method)


BAD_PROGRAMS: list[tuple[Callable[[Any], object], str]] = [
    (lambda stream: stream.map(7), r"map\(\) needs a callable or a MapFunction"),
    (lambda stream: stream.map(Split()), r"map\(\) needs a callable or a MapFunction"),
    (lambda stream: stream.flat_map(None), r"flat_map\(\) needs a callable or a FlatMapFunction"),
    (lambda stream: stream.filter("x"), r"filter\(\) needs a callable or a FilterFunction"),
    (lambda stream: stream.key_by(0), r"key_by\(\) needs a callable or a KeySelector"),
    (lambda stream: stream.key_by(abs).reduce(0), r"reduce\(\) needs a callable or a ReduceFunction"),
    (lambda stream: stream.key_by(abs).reduce(abs), r"reduce\(\) calls its function with 2 records"),
    (lambda stream: stream.key_by(abs).sum(None), r"sum\(\) needs the position or the name of a field, got None"),
    (lambda stream: stream.key_by(abs).sum(True), "got True"),
    (lambda stream: stream.key_by(abs).min_by(None), r"min_by\(\) needs the position or the name of a field, got None"),
    (lambda stream: stream.key_by(abs).sum(""), "got ''"),
    (lambda stream: stream.map(abs, "int"), r"type information such as Types\.STRING\(\), got 'int'"),
    (lambda stream: stream.key_by(abs, int), "got <class 'int'>"),
    (lambda stream: stream.sink_to(print), r"sink_to\(\) needs a sink such as DiscardingSink\(\), got <built-in"),
    (lambda stream: stream.print(7), r"print\(\) needs a text that is not empty, got 7"),
    (lambda stream: stream.name(""), r"name\(\) needs a text that is not empty, got ''"),
    (lambda stream: stream.uid(None), r"uid\(\) needs a text"),
    (lambda stream: stream.set_description(""), r"set_description\(\) needs a text"),
    (lambda stream: stream.slot_sharing_group(""), "name of a slot sharing group"),
    (
        lambda stream: stream.set_parallelism(0),
        "operator 'Map': its parallelism must be a whole number of 1 or more, got 0",
    ),
    (lambda stream: stream.set_parallelism(-1), "got -1"),
    (lambda stream: stream.print().set_parallelism(0), r"operator 'Sink: Print to Std\. Out': its parallelism"),
    (
        lambda stream: stream.set_max_parallelism(0),
        "operator 'Map': its max parallelism must be a whole number from 1 to 32768, got 0",
    ),
    (lambda stream: stream.set_buffer_timeout(-2), r"operator 'Map': its buffer timeout must be -1 .* got -2"),
    (lambda stream: stream.set_buffer_timeout(1.5), "got 1.5"),
    (
        lambda stream: stream.force_non_parallel().set_parallelism(2),
        "'Map' cannot run in parallel: its parallelism must be 1, got 2",
    ),
    (
        lambda stream: stream.force_non_parallel().set_max_parallelism(2),
        "'Map' cannot run in parallel: its max parallelism must be 1",
    ),
    (
        lambda stream: stream.rebalance().set_parallelism(2),
        r"set_parallelism\(\) on a REBALANCE partitioning, which is no operator",
    ),
    (lambda stream: stream.key_by(abs).set_parallelism(2), r"set_parallelism\(\) on a HASH partitioning"),
    (lambda stream: stream.key_by(abs).name("x"), r"name\(\) on a HASH"),
    (lambda stream: stream.key_by(abs).get_name(), r"get_name\(\) on a HASH"),
    (lambda stream: stream.key_by(abs).uid("x"), r"uid\(\) on a HASH"),
    (lambda stream: stream.key_by(abs).set_max_parallelism(2), r"set_max_parallelism\(\) on a HASH"),
    (lambda stream: stream.key_by(abs).force_non_parallel(), r"force_non_parallel\(\) on a HASH"),
    (lambda stream: stream.key_by(abs).set_buffer_timeout(2), r"set_buffer_timeout\(\) on a HASH"),
    (lambda stream: stream.key_by(abs).start_new_chain(), r"start_new_chain\(\) on a HASH"),
    (lambda stream: stream.key_by(abs).disable_chaining(), r"disable_chaining\(\) on a HASH"),
    (lambda stream: stream.key_by(abs).slot_sharing_group("x"), r"slot_sharing_group\(\) on a HASH"),
    (lambda stream: stream.key_by(abs).set_description("x"), r"set_description\(\) on a HASH"),
    (
        lambda stream: stream.key_by(abs).rebalance(),
        "a keyed stream keeps its partitioning, it cannot become REBALANCE",
    ),
    (lambda stream: stream.key_by(abs).forward(), "cannot become FORWARD"),
    (lambda stream: stream.key_by(abs).broadcast(), "cannot become BROADCAST"),
    (
        lambda stream: stream.execute_and_collect(limit=0),
        r"execute_and_collect\(\) needs a limit of 1 or more records, got 0",
    ),
    (lambda stream: stream.execute_and_collect(limit=True), "got True"),
]


@pytest.mark.parametrize(("program", "message"), BAD_PROGRAMS)
def test_a_bad_program_is_refused_where_it_is_written(program: Callable[[DataStream], object], message: str) -> None:
    environment, _ = new_environment()
    stream = environment.from_collection([1]).map(abs)

    with pytest.raises(JobGraphError, match=message):
        program(stream)


def test_a_collection_cannot_be_read_in_parallel() -> None:
    environment, _ = new_environment()
    stream = environment.from_collection([1])

    assert stream.set_parallelism(1) is stream
    with pytest.raises(
        JobGraphError, match="'Source: Collection Source' cannot run in parallel: its parallelism must be 1, got 2"
    ):
        stream.set_parallelism(2)


def test_a_refused_setting_changes_nothing() -> None:
    environment, graph = new_environment()
    mapped = environment.from_collection([1]).map(abs)

    with pytest.raises(JobGraphError):
        mapped.set_parallelism(0)

    assert last_node(graph()).parallelism == 2


def test_a_side_output_has_one_type() -> None:
    environment, graph = new_environment()
    stream = environment.from_collection([1]).process(Passing())
    stream.get_side_output(OutputTag("late", Types.INT())).print()
    stream.get_side_output(OutputTag("late", Types.STRING())).print()

    with pytest.raises(
        JobGraphError, match="operator 'Process': its side output 'late' is read as Integer and as String"
    ):
        graph()


class Keyed(KeyedProcessFunction):
    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> list[int]:
        return [value]


class Timed(Keyed):
    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> list[int]:
        return []


class TimedAgain(Timed):
    pass


@pytest.mark.parametrize(
    ("function", "has_timers"),
    [(Passing(), False), (Keyed(), False), (Timed(), True), (TimedAgain(), True)],
    ids=["plain", "keyed", "timed", "inherited"],
)
def test_a_process_function_has_timers_if_it_says_what_they_do(function: Any, has_timers: bool) -> None:
    """The base class's ``on_timer`` does nothing."""
    environment, _ = new_environment()

    step = environment.from_collection([1]).key_by(lambda value: 0).process(function)

    assert isinstance(step._transformation, OperatorTransformation)
    assert step._transformation.takes_single_records is not has_timers
