"""Programs with declared types, on one TaskManager and on two; what PyFlink 2.3 gives for them is written here."""

from typing import Any

import pytest

from flowlet.common import Row, TypeInformation, Types
from flowlet.datastream import (
    DataStream,
    OutputTag,
    ProcessFunction,
    SourceContext,
    SourceFunction,
    StreamExecutionEnvironment,
)
from flowlet.errors import JobExecutionError, JobGraphError
from tests.flowlet.client.conftest import SharedCluster
from tests.flowlet.client.jobs import ran

pytestmark = pytest.mark.slow

PAIR = Types.TUPLE([Types.STRING(), Types.INT()])
PERSON = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])
ROUNDED = 1.100000023841858  # 1.1 in 32 bits


def emitting(environment: StreamExecutionEnvironment, value: Any, declared: TypeInformation) -> DataStream:
    return environment.from_collection([0]).map(lambda _: value, output_type=declared)


def test_elements_of_a_collection_wrap_around(environment: StreamExecutionEnvironment) -> None:
    elements = [1, 2**31, 2**40 + 5, -(2**31) - 1]

    assert ran(environment.from_collection(elements, Types.INT())) == [1, -(2**31), 5, 2**31 - 1]
    assert ran(environment.from_collection([40000], Types.SHORT())) == [-25536]
    assert ran(environment.from_collection([("a", 200)], Types.TUPLE([Types.STRING(), Types.BYTE()]))) == [("a", -56)]
    assert ran(environment.from_collection([("b", 2**31), Row(age=3, name="a")], PERSON)) == [
        Row(name="b", age=-(2**31)),
        Row(name="a", age=3),
    ]


def test_elements_become_floats_and_texts_of_numbers(environment: StreamExecutionEnvironment) -> None:
    assert ran(environment.from_collection([1.1], Types.FLOAT()).map(repr)) == [repr(ROUNDED)]
    assert ran(environment.from_collection([1], Types.DOUBLE()).map(repr)) == ["1.0"]
    assert ran(environment.from_collection([5], Types.STRING())) == ["5"]


def test_between_chained_functions_values_stay_as_they_are(environment: StreamExecutionEnvironment) -> None:
    assert ran(emitting(environment, 2**31, Types.INT()).map(repr)) == ["2147483648"]
    assert ran(emitting(environment, 1.1, Types.FLOAT()).filter(lambda _: True).map(repr)) == ["1.1"]


def test_an_exchange_converts(environment: StreamExecutionEnvironment) -> None:
    pairs = emitting(environment, (1.1, True), Types.TUPLE([Types.FLOAT(), Types.INT()]))

    assert ran(emitting(environment, 1.1, Types.FLOAT()).rebalance().map(repr)) == [repr(ROUNDED)]
    assert ran(pairs.key_by(lambda pair: pair[1]).map(repr)) == [f"({ROUNDED!r}, 1)"]
    assert ran(pairs.filter(lambda _: True).key_by(lambda pair: pair[1]).map(repr)) == [f"({ROUNDED!r}, 1)"]


def test_an_operator_with_two_readers_converts(environment: StreamExecutionEnvironment) -> None:
    source = emitting(environment, 1.1, Types.FLOAT())

    assert ran(source.map(repr).union(source.map(repr))) == [repr(ROUNDED)] * 2


def test_collected_records_are_converted(environment: StreamExecutionEnvironment) -> None:
    assert ran(emitting(environment, 1.7, Types.INT())) == [1]
    assert ran(emitting(environment, 1.1, Types.FLOAT())) == [1.1]
    assert ran(emitting(environment, Row(age=1, name="x"), PERSON)) == [Row(name="x", age=1)]
    assert ran(emitting(environment, b"a\xff", Types.PRIMITIVE_ARRAY(Types.BYTE()))) == [[97, -1]]


class Splitting(ProcessFunction):
    def __init__(self, tag: OutputTag) -> None:
        self._tag = tag

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield self._tag, Row("side", value)
        yield value


def test_a_side_output_has_the_type_of_its_tag(environment: StreamExecutionEnvironment) -> None:
    tag = OutputTag("people", PERSON)
    split = environment.from_collection([1, 2]).process(Splitting(tag), Types.LONG())

    assert ran(split.get_side_output(tag).map(lambda row: row.as_dict())) == [
        {"name": "side", "age": 1},
        {"name": "side", "age": 2},
    ]


def test_a_reduce_function_sees_the_declared_names_of_its_last_result(environment: StreamExecutionEnvironment) -> None:
    people = environment.from_collection([Row("a", 1), Row("a", 2), Row("a", 3)], PERSON)

    ages = people.key_by(lambda row: row.name).reduce(lambda one, other: Row(one.name, one.age + other.age))

    assert ran(ages) == [Row(name="a", age=1), Row(name="a", age=3), Row(name="a", age=6)]


def test_a_keyed_stream_gives_rows_of_key_and_record(environment: StreamExecutionEnvironment) -> None:
    keyed = environment.from_collection([("a", 1), ("b", 2)], PAIR).key_by(lambda pair: pair[0], Types.STRING())

    assert sorted(ran(keyed), key=repr) == [Row(f0="a", f1=("a", 1)), Row(f0="b", f1=("b", 2))]
    assert keyed.execute_and_collect(limit=1) == [Row(f0="a", f1=("a", 1))]


class Emitting(SourceFunction):
    def run(self, ctx: SourceContext) -> None:
        ctx.collect(Row("a", 1))

    def cancel(self) -> None:
        pass


def test_a_source_function_may_emit_rows_without_their_names(environment: StreamExecutionEnvironment) -> None:
    assert ran(environment.add_source(Emitting(), type_info=PERSON).map(lambda row: row.name)) == ["a"]


@pytest.mark.parametrize(
    ("value", "declared", "message"),
    [
        (
            2**31,
            Types.INT(),
            "emitted 2147483648, which is not of its declared type Integer, 2147483648 of type int does not fit",
        ),
        (5, Types.STRING(), "emitted 5, which is not of its declared type String, expected a str, got 5 of type int"),
        (["a", 1], PAIR, "expected a tuple, got .* of type list"),
        (
            ("a", "b"),
            PAIR,
            r"TupleTypeInfo\(String, Integer\), field 1 \(Integer\): expected an int, got 'b' of type str",
        ),
        (("a", 1), PERSON, "expected a Row, got"),
    ],
)
def test_a_record_of_another_type_fails_the_job(
    environment: StreamExecutionEnvironment, value: Any, declared: Any, message: str
) -> None:
    with pytest.raises(JobExecutionError, match=f"(?s)operator 'Map' .subtask 0. .*{message}"):
        ran(emitting(environment, value, declared))


def test_a_list_of_types_declares_rows(environment: StreamExecutionEnvironment) -> None:
    numbers = environment.from_collection([1])
    stream = numbers.map(lambda value: Row("a", value), output_type=[Types.STRING(), Types.INT()])  # type: ignore[arg-type]  # as PyFlink takes it

    assert stream.get_type() == Types.ROW([Types.STRING(), Types.INT()])
    with pytest.raises(JobGraphError, match="declared with type information"):
        stream.map(repr, output_type=str)  # type: ignore[arg-type]  # this is the test


def test_rows_arrive_with_their_names_on_another_task_manager(cluster: SharedCluster) -> None:
    """Rows go from both TaskManagers to both, by key: a function sees a named row, whatever was emitted."""
    rows = cluster.environment().set_parallelism(2).from_collection(list(range(400))).rebalance()
    unnamed = rows.map(lambda number: Row(f"name {number % 10}", number), output_type=PERSON)
    reordered = rows.map(lambda number: Row(age=number, name=f"name {number % 10}"), output_type=PERSON)

    seen = unnamed.union(reordered).key_by(lambda row: row.name).map(lambda row: (type(row).__name__, row.as_dict()))

    people = [{"name": f"name {number % 10}", "age": number} for number in range(400)]
    assert sorted(ran(seen), key=repr) == sorted([("Row", person) for person in people] * 2, key=repr)
