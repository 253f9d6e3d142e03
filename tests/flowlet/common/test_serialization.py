import pytest

from flowlet.common.serialization import ByteArraySchema, RowFieldExtractorSchema, SimpleStringSchema
from flowlet.common.typeinfo import Types
from flowlet.common.types import Row
from flowlet.errors import JobGraphError


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
