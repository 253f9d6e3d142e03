"""Tests of ``project``, ``set_uid_hash``, and side outputs with a list of types."""

from collections.abc import Iterator

import pytest

from flowlet.common import Types
from flowlet.datastream import DataStream, OutputTag, StreamExecutionEnvironment
from flowlet.errors import JobGraphError
from flowlet.graph.stream_graph import StreamGraphSettings, build_stream_graph

PAIRS = Types.TUPLE([Types.STRING(), Types.LONG(), Types.DOUBLE()])


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamExecutionEnvironment]:
    monkeypatch.setenv("FLOWLET_LOCAL", "inprocess")
    environment = StreamExecutionEnvironment.get_execution_environment()
    environment.set_parallelism(1)
    yield environment
    environment.close()


def test_the_fields_come_in_the_order_of_the_positions(environment: StreamExecutionEnvironment) -> None:
    stream = environment.from_collection([("a", 1, 0.5), ("b", 2, 1.5)], PAIRS)

    projected = stream.project(2, 0)

    assert projected.get_type() == Types.TUPLE([Types.DOUBLE(), Types.STRING()])
    assert list(projected.execute_and_collect()) == [(0.5, "a"), (1.5, "b")]


def test_one_field_is_a_tuple_too(environment: StreamExecutionEnvironment) -> None:
    """The projection of a keyed stream keeps nothing of its keys."""
    stream = environment.from_collection([("a", 1, 0.5)], PAIRS).key_by(lambda pair: pair[0])

    assert list(stream.project(1).execute_and_collect()) == [(1,)]


@pytest.mark.parametrize("positions", [(), (3,), (-1,), ("a",), (True,)])
def test_a_position_that_no_field_has_is_refused(
    environment: StreamExecutionEnvironment, positions: tuple[int, ...]
) -> None:
    stream = environment.from_collection([("a", 1, 0.5)], PAIRS)

    with pytest.raises(JobGraphError, match=r"project\(\) needs"):
        stream.project(*positions)


def test_records_without_a_declared_tuple_cannot_be_projected(environment: StreamExecutionEnvironment) -> None:
    with pytest.raises(JobGraphError, match="Only Tuple DataStreams can be projected"):
        environment.from_collection([("a", 1)]).project(0)


def hashes(*streams: DataStream) -> list[str]:
    graph = build_stream_graph([stream._transformation for stream in streams], "job", StreamGraphSettings())
    return [node.hash for node in graph.nodes.values()]


def test_a_hash_is_the_id_of_its_operator(environment: StreamExecutionEnvironment) -> None:
    """The id of the operator is the hash as it is, whatever the uid says."""
    mapped = environment.from_collection([1]).map(abs).uid("numbers").set_uid_hash("ABCDEF0123456789" * 2)

    assert hashes(mapped)[1] == "abcdef0123456789" * 2


def test_two_operators_cannot_have_one_hash(environment: StreamExecutionEnvironment) -> None:
    numbers = environment.from_collection([1])
    both = [numbers.map(abs).name(name).set_uid_hash("0" * 32) for name in ("one", "two")]

    with pytest.raises(JobGraphError, match="'one' and 'two' have the same hash"):
        hashes(*both)


@pytest.mark.parametrize("wrong", ["", "0" * 31, "g" * 32, None])
def test_a_hash_has_32_hex_digits(environment: StreamExecutionEnvironment, wrong: str) -> None:
    with pytest.raises(JobGraphError, match="32 character String that describes a hex code"):
        environment.from_collection([1]).set_uid_hash(wrong)


def test_a_list_of_types_makes_rows_of_a_side_output() -> None:
    assert OutputTag("rows", [Types.STRING(), Types.LONG()]).type_info == Types.ROW([Types.STRING(), Types.LONG()])
