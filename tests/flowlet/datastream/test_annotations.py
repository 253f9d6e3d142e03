"""Promises of annotations: they name types and contradict wrong ones, and convert nothing."""

import datetime
import decimal
import re
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import pytest

from flowlet.common import Row, Types
from flowlet.common.typeinfo import InferredTypeInfo
from flowlet.datastream import FlatMapFunction, MapFunction, OutputTag, ProcessFunction, StreamExecutionEnvironment
from flowlet.datastream.user_functions.argument_checks import annotated_result, contradiction, inferred_type
from flowlet.errors import JobGraphError

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]  # it exists for nobody


class Point(NamedTuple):
    x: int


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (str, Types.STRING()),
        (int, Types.LONG()),
        (bool, Types.BOOLEAN()),
        (float, Types.DOUBLE()),
        (bytes, Types.PRIMITIVE_ARRAY(Types.BYTE())),
        (decimal.Decimal, Types.BIG_DEC()),
        (datetime.datetime, Types.SQL_TIMESTAMP()),
        (datetime.date, Types.SQL_DATE()),
        (tuple[str, int], Types.TUPLE([Types.STRING(), Types.LONG()])),
        (tuple[str, tuple[int, float]], Types.TUPLE([Types.STRING(), Types.TUPLE([Types.LONG(), Types.DOUBLE()])])),
        (tuple[str, Any], Types.TUPLE([Types.STRING(), Types.PICKLED_BYTE_ARRAY()])),
        (list[int], Types.LIST(Types.LONG())),
        (dict[str, float], Types.MAP(Types.STRING(), Types.DOUBLE())),
        (Optional[int], Types.LONG()),  # noqa: UP045  # the older spelling
        (int | None, Types.LONG()),
    ],
)
def test_annotations_name_types(annotation: Any, expected: Any) -> None:
    inferred = inferred_type(annotation)

    assert isinstance(inferred, InferredTypeInfo)
    assert inferred.inferred == expected
    assert inferred == Types.PICKLED_BYTE_ARRAY()
    assert hash(inferred) == hash(Types.PICKLED_BYTE_ARRAY())


@pytest.mark.parametrize(
    "annotation",
    [None, type(None), Any, object, Point, Row, tuple, tuple[int, ...], int | str, list, Union[int, str], "int"],  # noqa: UP007  # as above
)
def test_what_is_not_understood_is_any_object(annotation: Any) -> None:
    assert not isinstance(inferred_type(annotation), InferredTypeInfo)
    assert inferred_type(annotation) == Types.PICKLED_BYTE_ARRAY()


@pytest.mark.parametrize(
    ("annotation", "declared", "reason"),
    [
        (str, Types.INT(), "str is not Integer"),
        (int, Types.STRING(), "int is not String"),
        (list[str], Types.TUPLE([Types.STRING()]), r"list\[str\] is not TupleTypeInfo"),
        (tuple[str, str], Types.TUPLE([Types.STRING(), Types.INT()]), "field 1: str is not Integer"),
        (tuple[str], Types.TUPLE([Types.STRING(), Types.INT()]), "has 1 fields, .* has 2"),
        (tuple[str, int], Types.ROW([Types.STRING(), Types.INT()]), "is not RowTypeInfo"),
        (list[str], Types.LIST(Types.INT()), "str is not Integer"),
        (dict[str, int], Types.LIST(Types.INT()), "is not ListTypeInfo"),
        (str | None, Types.INT(), "str is not Integer"),
        (int | float, Types.STRING(), "int is not String"),
        (str, Types.SQL_DATE(), "str is not DateTypeInfo"),
        (str, Types.PRIMITIVE_ARRAY(Types.BYTE()), "str is not Primitive"),
        (bytes, Types.MAP(Types.INT(), Types.INT()), "bytes is not Map"),
        (int, Types.SQL_TIMESTAMP(), "int is not TimestampTypeInfo"),
        (int, Types.SQL_TIME(), "int is not TimeTypeInfo"),
    ],
)
def test_an_annotation_contradicts_a_type_that_none_of_its_values_has(
    annotation: Any, declared: Any, reason: str
) -> None:
    found = contradiction(annotation, declared)

    assert found is not None
    assert re.search(reason, found)


@pytest.mark.parametrize(
    ("annotation", "declared"),
    [
        (int, Types.DOUBLE()),
        (float, Types.INT()),
        (bool, Types.INT()),
        (int, Types.BYTE()),
        (str, Types.BIG_DEC()),
        (Point, Types.TUPLE([Types.INT()])),
        (tuple[int, ...], Types.TUPLE([Types.INT()])),
        (tuple[str, int, int], Types.TUPLE([Types.STRING(), Types.INT()])),
        (tuple[OutputTag, int], Types.INT()),
        (int | str, Types.STRING()),
        (object, Types.STRING()),
        (Any, Types.STRING()),
        (None, Types.STRING()),
        (str, Types.PICKLED_BYTE_ARRAY()),
        (Row, Types.ROW([Types.INT()])),
        (datetime.datetime, Types.SQL_DATE()),
    ],
)
def test_an_annotation_that_may_be_right_contradicts_nothing(annotation: Any, declared: Any) -> None:
    assert contradiction(annotation, declared) is None


def pair_of(text: str) -> tuple[str, int]:
    return text, 1


def postponed(text: str) -> "tuple[str, int]":
    return text, 1


def unresolvable(text: str) -> "Unknown":
    return text


class Mapping(MapFunction):
    def map(self, value: Any) -> int:
        return 1


class Calling:
    def __call__(self, value: Any) -> float:
        return 1.0


def test_annotations_are_found_at_functions_methods_and_callable_objects() -> None:
    assert annotated_result(pair_of, "map") == tuple[str, int]
    assert annotated_result(postponed, "map") == tuple[str, int]
    assert annotated_result(Mapping(), "map") is int
    assert annotated_result(Calling(), "map") is float
    for unknown in (unresolvable, lambda value: value, str, print, abs):
        assert annotated_result(unknown, "map") is None


def test_results_that_are_iterated_over_have_the_annotation_of_each() -> None:
    def yielding(text: str) -> Iterator[tuple[str, int]]:
        yield text, 1

    def generating(text: str) -> Generator[str, None, None]:
        yield text

    def listing(text: str) -> list[int]:
        return [1]

    def bare(text: str) -> Iterable:  # type: ignore[type-arg]  # this is the test
        return [text]

    def pairs(text: str) -> tuple[int, int]:
        return 1, 2

    found = [
        annotated_result(each, "flat_map", is_iterated=True) for each in (yielding, generating, listing, bare, pairs)
    ]

    assert found == [tuple[str, int], str, int, None, None]


class Words(FlatMapFunction):
    def flat_map(self, value: str) -> Iterator[tuple[str, int]]:
        yield value, 1


class Yielding(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[str]:
        yield "a"


def test_streams_show_what_annotations_say_and_keep_their_type() -> None:
    stream = StreamExecutionEnvironment.get_execution_environment().from_collection(["a"])

    pairs = stream.map(pair_of)

    assert pairs.get_type() == Types.PICKLED_BYTE_ARRAY()
    assert repr(pairs.get_type()) == "PickledByteArrayTypeInfo(TupleTypeInfo(String, Long))"
    assert (
        repr(stream.flat_map(Words()).filter(bool).get_type())
        == "PickledByteArrayTypeInfo(TupleTypeInfo(String, Long))"
    )
    assert repr(stream.process(Yielding()).get_type()) == "PickledByteArrayTypeInfo(String)"
    assert pairs.union(stream.map(lambda text: (text, 1))).get_type() == Types.PICKLED_BYTE_ARRAY()


def test_columns_have_the_types_of_annotations() -> None:
    pa = pytest.importorskip("pyarrow")
    stream = StreamExecutionEnvironment.get_execution_environment().from_collection(["a"])

    assert stream.map(pair_of).to_arrow().schema == pa.schema([("f0", pa.string()), ("f1", pa.int64())])


def test_a_declared_type_that_the_annotation_contradicts_is_refused() -> None:
    stream = StreamExecutionEnvironment.get_execution_environment().from_collection(["a"])
    triple = Types.TUPLE([Types.STRING(), Types.STRING()])

    with pytest.raises(
        JobGraphError,
        match=r"map\(\) declares the type TupleTypeInfo\(String, String\), but pair_of returns another one",
    ):
        stream.map(pair_of, triple)
    with pytest.raises(
        JobGraphError, match=r"flat_map\(\) declares .* returns results of another one by its annotation: field 1: int"
    ):
        stream.flat_map(Words(), triple)
    with pytest.raises(JobGraphError, match=r"process_element.* str is not Integer"):
        stream.process(Yielding(), Types.INT())
    assert stream.map(pair_of, Types.TUPLE([Types.STRING(), Types.INT()])).get_type() == Types.TUPLE(
        [Types.STRING(), Types.INT()]
    )
