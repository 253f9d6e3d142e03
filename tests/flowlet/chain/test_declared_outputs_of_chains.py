"""Chunking outputs and keyed consumers that convert records to a declared type."""

import datetime
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.chain.chunking_output import ChunkingOutput, KeyExtractor
from flowlet.columns import ArrayColumn, Columns, Shape
from flowlet.columns.table import columns_of
from flowlet.common import Row, Types
from flowlet.common.values.field_values import TypeMismatchError
from flowlet.errors import DeclaredTypeError
from flowlet.records import Chunk
from flowlet.serde.type_serializer import preview
from flowlet.typed.record_conversion import DeclaredOutput, RecordConversion
from flowlet.typed.value_conversion import value_converter
from tests.flowlet.operators.chains import loop_of
from tests.flowlet.operators.harness import RecordingOutput
from tests.flowlet.serde.exact import exact

PAIR = Types.TUPLE([Types.STRING(), Types.INT()])
ROUNDED = Types.TUPLE([Types.STRING(), Types.FLOAT()])
PERSON = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])


def converting(declared: Any, keys: Callable[[Any], Any] | None = None) -> tuple[ChunkingOutput, RecordingOutput]:
    target = RecordingOutput()
    conversion = RecordConversion(DeclaredOutput(declared), preview, "Map", 3)
    extractor = None if keys is None else KeyExtractor(keys, "key_by", 0, selector=keys)
    return ChunkingOutput(target, extractor, conversion), target


def emitted(output: ChunkingOutput, target: RecordingOutput, records: list[Any], chunk: int = 20) -> list[Any]:
    """Emit records in several runs, so that loops for their shape are generated; return the records that the target
    got.
    """
    loop = loop_of(lambda code, record, timestamp, _: output.write(code, record, timestamp), output)
    for start in range(0, len(records), chunk):
        loop.run(iter(records[start : start + chunk]), None, len(records[start : start + chunk]))
    return target.values


@pytest.mark.parametrize(
    "keys", [None, operator.itemgetter(0), lambda record: record[0], lambda record: record[0] + "x"]
)
@pytest.mark.parametrize(
    ("declared", "records"),
    [
        (PAIR, [(f"k{number % 3}", number) for number in range(200)]),
        (PAIR, [(f"k{number % 3}", number if number % 7 else True) for number in range(200)]),
        (ROUNDED, [(f"k{number % 3}", number / 10) for number in range(200)]),
        (PERSON, [Row(f"k{number % 3}", number) for number in range(200)]),
        (PERSON, [Row(age=number, name=f"k{number % 3}") for number in range(200)]),
        (PERSON, [Row(name=f"k{number % 3}", age=number) for number in range(200)]),
    ],
)
def test_records_arrive_in_their_declared_type(declared: Any, records: list[Any], keys: Any) -> None:
    """Each record arrives as its converter makes it, whatever the loop tests for."""
    convert = value_converter(declared)
    assert convert is not None
    output, target = converting(declared, keys)

    values = emitted(output, target, records)

    assert exact(values) == exact([convert(record) for record in records])


@pytest.mark.parametrize("is_collected", [False, True])
def test_columns_become_what_single_records_become(is_collected: bool) -> None:  # a parameter of the test
    """Bytes for the user's program are lists, which no column of bytes covers."""
    declared = Types.TUPLE([Types.PRIMITIVE_ARRAY(Types.BYTE()), Types.FLOAT(), Types.SQL_DATE(), Types.INT()])
    records = [(b"\xff", 0.1, datetime.date(2024, 2, 29), number) for number in range(300)]
    conversion = RecordConversion(DeclaredOutput(declared, is_collected), preview, "Map", 0)
    columns = columns_of(records)
    assert columns is not None

    found = conversion.converted(Chunk.of_columns(columns)).values

    assert exact(found) == exact(list(map(conversion.convert, records)))
    assert type(found[0][0]) is (list if is_collected else bytes)


@given(
    numbers=st.lists(
        st.sampled_from([0, 1, True, 1.5, 2**31 - 1, -(2**31), 2**31, "x", None]) | st.integers(), max_size=120
    ),
    is_keyed=st.booleans(),
)
def test_what_comes_before_a_misfit_is_passed_on_and_the_misfit_is_named(numbers: list[Any], is_keyed: bool) -> None:
    """The outputs do what the converter does record by record."""
    convert = value_converter(PAIR)
    assert convert is not None
    records = [("a", 0)] * 40 + [("a", number) for number in numbers]
    expected, misfit = [], None
    for record in records:
        try:
            expected.append(convert(record))
        except TypeMismatchError:
            misfit = record
            break
    output, target = converting(PAIR, operator.itemgetter(0) if is_keyed else None)

    if misfit is None:
        emitted(output, target, records)
    else:
        with pytest.raises(DeclaredTypeError) as raised:
            emitted(output, target, records)
        assert preview(misfit) in str(raised.value)

    assert exact(target.values) == exact(expected)


def test_the_error_names_operator_subtask_record_type_and_field() -> None:
    output, target = converting(PAIR)

    with pytest.raises(DeclaredTypeError) as raised:
        emitted(output, target, [("a", 1), ("b", "two")])

    assert str(raised.value) == (
        "operator 'Map' (subtask 3) emitted ('b', 'two'), which is not of its declared type TupleTypeInfo(String, "
        "Integer), "
        "field 1 (Integer): expected an int, got 'two' of type str"
    )
    assert (raised.value.operator, raised.value.subtask, raised.value.record_preview) == ("Map", 3, "('b', 'two')")


def chunk_of(*arrays: Any) -> Chunk:
    return Chunk.of_columns(Columns(len(arrays[0]), tuple(ArrayColumn(np.array(each)) for each in arrays), Shape.TUPLE))


def test_columns_are_checked_by_their_lowest_and_highest_value() -> None:
    declared = Types.TUPLE([Types.INT(), Types.DOUBLE()])
    output, target = converting(declared)
    chunk = chunk_of([1, 2**31 - 1], [0.5, 1.1])

    output.collect(chunk)

    assert target.chunks == [chunk]
    with pytest.raises(DeclaredTypeError, match="2147483648 of type int does not fit into 32 bits"):
        output.collect(chunk_of([1, 2**31], [0.5, 1.1]))


def test_columns_of_floats_are_rounded_and_others_are_converted_record_by_record() -> None:
    output, target = converting(Types.TUPLE([Types.FLOAT(), Types.DOUBLE()]))

    output.collect(chunk_of([1.1, 1e300], [1.1, 2.0]))
    output.collect(chunk_of([1, 2], [1.1, 2.0]))

    assert exact(target.values) == exact([(1.100000023841858, 1.1), (float("inf"), 2.0), (1.0, 1.1), (2.0, 2.0)])


def test_columns_of_rows_are_checked_by_name() -> None:
    output, target = converting(Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.INT()]))
    columns = [ArrayColumn(np.array([1, 2])), ArrayColumn(np.array([3, 4]))]

    output.collect(Chunk.of_columns(Columns(2, tuple(columns), Shape.ROW, ("a", "b"))))
    output.collect(Chunk.of_columns(Columns(2, tuple(columns), Shape.ROW, ("b", "a"))))

    assert target.values == [Row(a=1, b=3), Row(a=2, b=4), Row(a=3, b=1), Row(a=4, b=2)]
