"""A program that prints records of every declared type, and of none; run with PyFlink it wrote ``printed_types.txt``.

``python printed_types.py flowlet`` or ``... pyflink``: the package whose API it uses.
"""

import datetime
import decimal
import importlib
import sys
from typing import Any

import numpy as np


def programs(package: str) -> list[tuple[str, Any, list[Any]]]:
    """Return a name, a declared type (None: none) and the records of each printed stream."""
    common = importlib.import_module(f"{package}.common")
    types, row, kind = common.Types, common.Row, common.RowKind
    instant = importlib.import_module(f"{package}.common.time").Instant
    person = types.ROW_NAMED(["name", "age"], [types.STRING(), types.INT()])
    utc = datetime.datetime.fromisoformat("2020-01-02T03:04:05.678901")
    return [
        (
            "undeclared",
            None,
            ["text", 1, 1.5, True, None, ("To", 1), [1, "a"], {"a": 1}, row("a", 1), row(name="a", age=1)],
        ),
        ("undeclared time", None, [datetime.date(2020, 1, 2), utc, datetime.time(1, 2, 3), decimal.Decimal("1.10")]),
        ("string", types.STRING(), ["text", "", "ä€"]),
        ("boolean", types.BOOLEAN(), [True, False, 1]),
        ("byte", types.BYTE(), [1, -128]),
        ("short", types.SHORT(), [1, -32768]),
        ("int", types.INT(), [1, -(2**31), 1.9, True, np.int64(7)]),
        ("long", types.LONG(), [1, -(2**63)]),
        (
            "float",
            types.FLOAT(),
            [1.1, 1, 1e10, 1e-5, 0.001, 1234567.0, 12345678.0, 1e300, float("nan"), -0.0, 16777216, 3.4e38, 1.4e-45],
        ),
        (
            "double",
            types.DOUBLE(),
            [1.1, 1, 1e10, 1e-5, 0.001, 1234567.0, 12345678.0, 1e300, float("nan"), -0.0, 0.1 + 0.2, 5e-324],
        ),
        ("big dec", types.BIG_DEC(), [decimal.Decimal("1.10"), 5, decimal.Decimal("1E+3"), decimal.Decimal("1E-10")]),
        ("instant", types.INSTANT(), [instant(1, 2), instant(0, 0), instant(1577934245, 678000000)]),
        ("date", types.SQL_DATE(), [datetime.date(2020, 1, 2), utc]),
        ("time", types.SQL_TIME(), [datetime.time(1, 2, 3, 456789)]),
        ("timestamp", types.SQL_TIMESTAMP(), [utc, datetime.datetime.fromisoformat("2020-01-02")]),
        ("tuple", types.TUPLE([types.STRING(), types.INT()]), [("To", 1), ("", -1), ("a", 2, 3)]),
        (
            "tuple of doubles",
            types.TUPLE([types.DOUBLE(), types.FLOAT(), types.BOOLEAN()]),
            [(1e10, 1.1, True), (1, 1, 0)],
        ),
        ("nested tuple", types.TUPLE([types.TUPLE([types.STRING(), types.INT()]), types.LONG()]), [(("a", 1), 2)]),
        (
            "tuple of arrays",
            types.TUPLE([types.PRIMITIVE_ARRAY(types.INT()), types.BASIC_ARRAY(types.STRING())]),
            [([1, 2], ["a", None])],
        ),
        ("tuple of bytes", types.TUPLE([types.PRIMITIVE_ARRAY(types.BYTE()), types.INT()]), [(b"ab\xff", 1)]),
        (
            "tuple of lists",
            types.TUPLE([types.LIST(types.INT()), types.MAP(types.STRING(), types.INT())]),
            [([1, 2], {"a": 1})],
        ),
        (
            "tuple of a row",
            types.TUPLE([person, types.INT()]),
            [(row("a", 1), 2), (row(age=1, name="a"), 2), (row(None, None), 3)],
        ),
        ("tuple of a deletion", types.TUPLE([person, types.INT()]), [(row.of_kind(kind.DELETE, "a", 1), 2)]),
        ("row", person, [row("a", 1), row(age=1, name="a"), row(None, None), row.of_kind(kind.UPDATE_AFTER, "b", 2)]),
        (
            "row of values",
            types.ROW([types.DOUBLE(), types.BOOLEAN(), types.LIST(types.INT())]),
            [row(1e10, True, [1, 2])],
        ),
        ("row of a row", types.ROW([person, types.TUPLE([types.STRING()])]), [row(row("a", 1), ("x",))]),
        ("list", types.LIST(types.INT()), [[1, 2], []]),
        ("list of texts", types.LIST(types.STRING()), [["a", "b"]]),
        ("list of rows", types.LIST(person), [[row("a", 1), row("b", None)]]),
        ("map", types.MAP(types.STRING(), types.INT()), [{"a": 1}, {}, {"b": None}]),
        (
            "map of many",
            types.MAP(types.STRING(), types.INT()),
            [{"the": 1, "quick": 2, "brown": 3, "fox": 4, "jumps": 5}],
        ),
        ("map of longs", types.MAP(types.LONG(), types.DOUBLE()), [{17: 1.0, 1: 2.0, 33: 0.5, 16: 1e7}]),
    ]


def main(package: str) -> None:
    """Print them, with the name of each as the prefix."""
    environment = importlib.import_module(f"{package}.datastream").StreamExecutionEnvironment
    for name, declared, records in programs(package):
        env = environment.get_execution_environment()
        env.set_parallelism(1)
        if package == "pyflink":
            env.set_python_executable(sys.executable)
        stream = env.from_collection(list(range(len(records)))).map(records.__getitem__, output_type=declared)
        stream.print(name)
        try:
            env.execute(name)
        except Exception as error:  # noqa: BLE001  # the other streams are printed nevertheless
            print(f"{name}: {type(error).__name__}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
