"""Rows, and the schemas that turn records into bytes."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common import Row, RowKind
from flowlet.common.serialization import ByteArraySchema, RowFieldExtractorSchema, SimpleStringSchema
from flowlet.common.typeinfo import Types
from flowlet.common.types import rows_of
from flowlet.errors import JobGraphError


def test_fields_are_found_by_position_and_by_name() -> None:
    row = Row(name="Alice", age=11)

    assert (row[0], row["age"], row.name, row[0:2]) == ("Alice", 11, "Alice", ["Alice", 11])


def test_named_values_keep_the_order_in_which_they_are_written() -> None:
    assert list(Row(b=1, a=2)) == [1, 2]
    assert repr(Row(b=1, a=2)) == "Row(b=1, a=2)"


def test_a_row_of_names_makes_rows() -> None:
    person = Row("name", "age")

    assert person("Alice", 11) == Row(name="Alice", age=11)
    assert list(person("Alice")) == ["Alice"]
    with pytest.raises(ValueError, match="makes rows of 2 values, got 3"):
        person("Alice", 11, 12)


def test_positional_and_named_values_do_not_mix() -> None:
    with pytest.raises(ValueError, match="not of both"):
        Row(1, b=2)


def test_unknown_fields_are_refused_as_python_does() -> None:
    row = Row(name="Alice")

    with pytest.raises(KeyError, match="age"):
        row["age"]
    with pytest.raises(KeyError, match="age"):
        Row("Alice")["age"]
    with pytest.raises(ValueError, match="age"):  # as PyFlink says it
        row["age"]
    with pytest.raises(AttributeError, match="no field 'age'"):
        _ = row.age
    with pytest.raises(AttributeError, match="name"):
        row.name = "Bob"  # type: ignore[attr-defined]  # fields are set with row["name"] = value
    assert not hasattr(Row("Alice"), "name")


def test_fields_are_set_by_position_and_by_name() -> None:
    row = Row(name="Alice", age=11)

    row["name"] = "Bob"
    row[1] = 12

    assert row == Row(name="Bob", age=12)


def test_containment_searches_names_or_values_and_length_counts_them() -> None:
    row = Row(name="Alice")

    assert "name" in row
    assert "Alice" not in row
    assert "Alice" in Row("Alice")
    assert len(row) == 1


def test_rows_are_equal_when_kind_names_and_values_are() -> None:
    assert Row("a", 1) == Row("a", 1)
    assert hash(Row("a", 1)) == hash(Row("a", 1))
    assert Row("a", 1) != Row("a", 2)
    assert Row("a") != Row(x="a")
    assert Row(x="a") != Row(y="a")
    assert Row("a") != Row.of_kind(RowKind.DELETE, "a")
    assert Row("a") != ("a",)
    assert Row(x="a", y=1) == Row(y=1, x="a")
    assert hash(Row(x="a", y=1)) == hash(Row(y=1, x="a"))
    assert Row(x="a", y=1) != Row(y="a", x=1)


def test_as_dict_reaches_into_nested_rows_only_when_asked() -> None:
    row = Row(key=1, value=Row(age=2, name="a"), many=[Row(x=1)], named={"k": Row(y=2)})

    assert row.as_dict()["value"] == Row(age=2, name="a")
    assert row.as_dict(recursive=True) == {
        "key": 1,
        "value": {"age": 2, "name": "a"},
        "many": [{"x": 1}],
        "named": {"k": {"y": 2}},
    }
    with pytest.raises(TypeError, match="no field names"):
        Row(1).as_dict()


def test_field_names_can_be_given_later_one_for_each_field() -> None:
    row = Row("Alice", 11)

    row.set_field_names(["name", "age"])

    assert row == Row(name="Alice", age=11)
    with pytest.raises(ValueError, match="1 names for 2 fields"):
        row.set_field_names(["name"])


def test_values_are_selected_by_names_in_the_order_asked_for() -> None:
    row = Row(a=1, b=2, c=3)

    assert row.get_fields_by_names(["c", "a"]) == [3, 1]
    assert row.get_fields_by_names(["a", "b", "c"]) == [1, 2, 3]
    assert Row(1, 2).get_fields_by_names(["c", "a"]) == [1, 2]
    with pytest.raises(KeyError, match="d"):
        row.get_fields_by_names(["d"])


def test_row_kinds_print_as_in_flink() -> None:
    assert [str(kind) for kind in RowKind] == ["+I", "-U", "+U", "-D"]


@given(
    values=st.lists(st.one_of(st.integers(), st.text(), st.none())),
    kind=st.sampled_from(RowKind),
    is_named=st.booleans(),
)
def test_pickling_keeps_everything(values: list[object], kind: RowKind, is_named: bool) -> None:
    """Rows travel between processes: values, names and kind arrive as they were."""
    row = Row.of_kind(kind, *values)
    if is_named:
        row.set_field_names([f"f{index}" for index in range(len(values))])

    assert pickle.loads(pickle.dumps(row)) == row


def test_a_deep_copy_shares_nothing_that_can_change() -> None:
    """Kind and names are kept; an object that two fields share is shared in the copy, too; a row may hold itself."""
    inner = [1]
    row = Row.of_kind(RowKind.DELETE, a=inner, b=inner, c=None)
    row["c"] = row

    copied = copy.deepcopy(row)
    inner.append(2)

    assert copied.get_row_kind() is RowKind.DELETE
    assert (copied["a"], copied["b"]) == ([1], [1])
    assert copied["a"] is copied["b"]
    assert copied["c"] is copied


def test_rows_of_one_table_do_not_share_their_names() -> None:
    first, second = rows_of(["a", "b"], [(1, 2), [3, 4]])

    first.set_field_names(["x", "y"])

    assert (first, second) == (Row(x=1, y=2), Row(a=3, b=4))
    assert rows_of(["a"], []) == []


def test_a_copy_is_a_row_of_its_own() -> None:
    row = Row(key="a", value=1)

    changed = copy.copy(row)
    changed["value"] = 2

    assert (row, changed) == (Row(key="a", value=1), Row(key="a", value=2))


def test_a_kind_is_pickled_by_its_value_on_every_python() -> None:
    assert [kind.__reduce_ex__(5) for kind in RowKind] == [(RowKind, (value,)) for value in range(4)]


# -------------------------------------------------------------------- schemas of bytes


def test_texts_become_bytes_and_texts_again() -> None:
    schema = SimpleStringSchema("latin-1")

    assert schema.serialize("hä") == b"h\xe4"
    assert schema.deserialize(b"h\xe4") == "hä"
    assert schema.get_produced_type() == Types.STRING()


def test_bytes_outside_the_charset_are_replaced() -> None:
    assert SimpleStringSchema().deserialize(b"a\xff") == "a\ufffd"


def test_bytes_stay_as_they_are() -> None:
    schema = ByteArraySchema()

    assert schema.serialize(bytearray(b"\x00\xff")) == b"\x00\xff"
    assert schema.deserialize(b"\x00") == b"\x00"


def test_records_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError, match="SimpleStringSchema writes texts, got 1 of type int"):
        SimpleStringSchema().serialize(1)
    with pytest.raises(TypeError, match="ByteArraySchema writes bytes, got 'a' of type str"):
        ByteArraySchema().serialize("a")


def test_an_unknown_charset_is_refused_in_the_program() -> None:
    with pytest.raises(JobGraphError, match="the charset 'klingon' is unknown"):
        SimpleStringSchema("klingon")


def test_one_field_of_bytes_is_taken_out_of_a_row() -> None:
    schema = RowFieldExtractorSchema(1)

    assert schema.serialize(Row("a", b"key")) == b"key"
    assert schema.serialize(("a", bytearray(b"key"))) == b"key"
    assert schema.serialize(("a", None)) is None
    with pytest.raises(TypeError, match="field 1 must be bytes, got 'key' of type str"):
        schema.serialize(("a", "key"))
    with pytest.raises(JobGraphError, match="the position of a field"):
        RowFieldExtractorSchema(-1)
