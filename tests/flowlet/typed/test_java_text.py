"""Promises of ``printed_text``: the lines that PyFlink prints."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common import Row, TypeInformation, Types
from flowlet.common.values.field_values import float_text
from flowlet.common.written_values import number_text
from flowlet.typed.value_conversion import printed_text
from tests.flowlet.typed import printed_types


@pytest.mark.parametrize(
    ("value", "type_info", "text"),
    [
        ("a", Types.STRING(), "a"),
        (None, Types.STRING(), "null"),
        (True, Types.BOOLEAN(), "true"),
        (("To", 1), Types.TUPLE([Types.STRING(), Types.INT()]), "(To,1)"),
        ((None, 1.0), Types.TUPLE([Types.STRING(), Types.DOUBLE()]), "(null,1.0)"),
        ([1, 2], Types.LIST(Types.INT()), "[1, 2]"),
        (b"a\xff", Types.PRIMITIVE_ARRAY(Types.BYTE()), "[97, -1]"),
        ((Row("a", None), 1), Types.TUPLE([Types.ROW([Types.STRING(), Types.INT()]), Types.INT()]), "(+I[a, null],1)"),
        (Row("a", None), Types.ROW([Types.STRING(), Types.INT()]), "+I[a,None]"),
        ("no row", Types.ROW([Types.STRING()]), "no row"),
        ({1: "a"}, Types.MAP(Types.INT(), Types.STRING()), "{1=a}"),
        ({True: 1, False: 2}, Types.MAP(Types.BOOLEAN(), Types.INT()), "{true=1, false=2}"),
        ({-1: 1, -(2**40): 2}, Types.MAP(Types.LONG(), Types.INT()), "{-1=1, -1099511627776=2}"),
    ],
)
def test_a_record_is_printed_as_java_prints_it(value: Any, type_info: TypeInformation, text: str) -> None:
    assert printed_text(type_info)(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (100.0, "100.0"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (-123.456, "-123.456"),
        (1.25e-9, "1.25E-9"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (math.nan, "NaN"),
        (5e-324, "4.9E-324"),
    ],
)
def test_numbers_have_javas_digits(value: float, text: str) -> None:
    assert number_text(value) == text


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_the_text_of_a_number_is_that_number_again(value: float) -> None:
    assert float(number_text(value)) == value


@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_text_of_a_short_number_is_that_number_again(value: float) -> None:
    assert np.float32(float_text(value)) == np.float32(value)


FOLDER = Path(__file__).parent


@pytest.mark.slow
def test_every_type_is_printed_as_pyflink_prints_it(capfd: pytest.CaptureFixture[str]) -> None:
    printed_types.main("flowlet")

    assert capfd.readouterr().out.splitlines() == (FOLDER / "printed_types.txt").read_text("utf-8").splitlines()
