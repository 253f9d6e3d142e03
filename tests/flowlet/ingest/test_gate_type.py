"""Promises of the checks of a producer's records against the type of a gate."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowlet.columns import ArrayColumn, Columns, Shape
from flowlet.common.typeinfo import TypeInformation, Types
from flowlet.common.types import Row
from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment
from flowlet.errors import JobGraphError
from flowlet.ingest import GateTypeError
from flowlet.ingest.description import check_columns, check_timestamps, checked_columns, checked_records
from flowlet.types.declared_records import DeclaredRecords, declared_records

PAIR = Types.ROW_NAMED(["n", "t"], [Types.LONG(), Types.STRING()])
ANY = Types.PICKLED_BYTE_ARRAY()


def test_the_last_of_many_records_is_checked_too() -> None:
    """The error names the record's number, field, value and type; records of any objects are not checked."""
    records: list[Any] = [Row(n=number, t="x") for number in range(3000)]
    wrong = [*records, Row(n=1, t=object)]

    chunk = checked_records(records, list(range(3000)), DeclaredRecords(PAIR), "gate 'clicks'")
    assert (chunk.values, chunk.timestamps) == (records, list(range(3000)))
    reason = r"^record 3000: field 't': <class 'object'> is of type type, not String; gate 'clicks' takes RowType"
    with pytest.raises(GateTypeError, match=reason):
        checked_records(wrong, None, DeclaredRecords(PAIR), "gate 'clicks'")
    assert checked_records(wrong, None, declared_records(ANY), "gate 'clicks'").values is wrong


def test_columns_are_checked_and_put_in_order() -> None:
    columns = Columns(2, (ArrayColumn(np.array([1, 2])),), Shape.SCALAR)

    assert checked_columns(columns, declared_records(Types.LONG()), "gate 'clicks'").to_list() == [1, 2]
    assert checked_columns(columns, declared_records(ANY), "gate 'clicks'") is columns
    with pytest.raises(GateTypeError, match=r"^record 0: 1 is of type int, not String; gate 'clicks' takes String"):
        checked_columns(columns, declared_records(Types.STRING()), "gate 'clicks'")
    with pytest.raises(GateTypeError, match=r"gate 'clicks' takes whole record batches, .*: use write_batch"):
        checked_columns(columns, declared_records(Types.ARROW(pa.schema([("n", pa.int64())]))), "gate 'clicks'")


@pytest.mark.parametrize("wrong", ["now", 1.0, True, None, 2**63, -(2**63) - 1], ids=repr)
def test_the_first_wrong_timestamp_is_named(wrong: Any) -> None:
    check_timestamps(None, 3, "gate 'clicks'")
    check_timestamps([1, 2**63 - 1, -(2**63)], 3, "gate 'clicks'")
    reason = r"^record 2: the timestamp .* is no int of 64 bits \(milliseconds\), for gate 'clicks'"
    with pytest.raises(GateTypeError, match=reason):
        check_timestamps([1, 2, wrong, wrong], 4, "gate 'clicks'")
    with pytest.raises(GateTypeError, match="1 timestamps for 2 records, for gate 'clicks'"):
        check_timestamps([1], 2, "gate 'clicks'")


@pytest.mark.parametrize(
    ("names", "type_info", "order"),
    [
        (["t", "n"], PAIR, [1, 0]),
        (["n", "t"], PAIR, [0, 1]),
        (["x", "y"], Types.ROW(PAIR.get_field_types()), [0, 1]),
        (["f1", "f0"], Types.ROW(PAIR.get_field_types()), [0, 1]),
        (["t", "n"], Types.TUPLE(PAIR.get_field_types()), [0, 1]),
        (["b", "a"], Types.ARROW(pa.schema([("a", pa.int64()), ("b", pa.int64())])), [1, 0]),
        (["x"], Types.LONG(), [0]),
        (["x", "y"], ANY, [0, 1]),
    ],
)
def test_columns_go_by_name_where_there_are_names(
    names: list[str], type_info: TypeInformation, order: list[int]
) -> None:
    assert list(check_columns(names, type_info, "gate 'clicks'")) == order


@pytest.mark.parametrize(
    "type_info", [None, ANY, Types.TUPLE([Types.LONG(), ANY]), Types.MAP(Types.STRING(), Types.LIST(ANY))], ids=repr
)
def test_pickles_must_be_allowed_by_name(type_info: TypeInformation | None) -> None:
    """The error advises when the program declares the gate."""
    env = StreamExecutionEnvironment.get_execution_environment()

    reason = r"gate 'clicks' takes any objects .*: they travel as pickles, .* pass allow_pickle=True if you"
    with pytest.raises(JobGraphError, match=reason):
        env.from_remote_gate("clicks", type_info)
    env.from_remote_gate("clicks", type_info, allow_pickle=True)


def test_a_gate_with_a_type_reads_no_pickles_even_if_they_are_allowed() -> None:
    reason = r"gate 'clicks' has a declared type, .*: it reads no pickles, leave out allow_pickle"
    with pytest.raises(JobGraphError, match=reason):
        StreamExecutionEnvironment.get_execution_environment().from_remote_gate("clicks", PAIR, allow_pickle=True)
