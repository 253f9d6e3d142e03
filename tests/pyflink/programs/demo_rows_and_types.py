"""How records of each declared type print, and what arrives behind an exchange."""

import datetime
from decimal import Decimal

from pyflink.common import Row, RowKind, Types
from pyflink.datastream import StreamExecutionEnvironment

NAMED = Types.ROW_NAMED(["name", "age", "scores"], [Types.STRING(), Types.INT(), Types.LIST(Types.INT())])
VALUES = [
    ("string", "text", Types.STRING()),
    ("boolean", True, Types.BOOLEAN()),
    ("byte", 127, Types.BYTE()),
    ("short", 32767, Types.SHORT()),
    ("int", 2147483647, Types.INT()),
    ("long", 2**62, Types.LONG()),
    ("float", 0.1, Types.FLOAT()),
    ("double", 0.1, Types.DOUBLE()),
    ("large double", 1e22, Types.DOUBLE()),
    ("small double", 0.00001, Types.DOUBLE()),
    ("decimal", Decimal("12.340"), Types.BIG_DEC()),
    ("date", datetime.date(2024, 2, 29), Types.SQL_DATE()),
    ("time", datetime.time(12, 30, 15), Types.SQL_TIME()),
    ("timestamp", datetime.datetime(2024, 2, 29, 12, 30, 15, 123000), Types.SQL_TIMESTAMP()),
    ("row", Row("a", 1, None), Types.ROW([Types.STRING(), Types.INT(), Types.STRING()])),
    ("named row", Row(name="a", age=1, scores=[1, 2]), NAMED),
    ("tuple", ("a", 1.5, True), Types.TUPLE([Types.STRING(), Types.DOUBLE(), Types.BOOLEAN()])),
    ("nested", ("a", Row(1, "b")), Types.TUPLE([Types.STRING(), Types.ROW([Types.INT(), Types.STRING()])])),
    ("map", {"a": 1}, Types.MAP(Types.STRING(), Types.INT())),
    ("primitive array", [1, 2, 3], Types.PRIMITIVE_ARRAY(Types.INT())),
    ("basic array", ["a", "b"], Types.BASIC_ARRAY(Types.STRING())),
    ("object array", [("a", 1)], Types.OBJECT_ARRAY(Types.TUPLE([Types.STRING(), Types.INT()]))),
]


def printed():
    """One stream per type: each record goes through map(), which sees the Python value, and is printed as its type
    says.
    """
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    for name, value, type_info in VALUES:
        stream = env.from_collection([value], type_info=type_info)
        stream.map(lambda x, name=name: f"{name}: {type(x).__name__} {x!r}").print()
        if "array" not in name:  # Java's arrays print with their address
            stream.map(lambda x: x, output_type=type_info).print(name)
    undeclared = env.from_collection([(1, None, "text", 2.5, True, [1, 2], {"key": (1,)})])
    undeclared.print("undeclared")
    for position, type_info in enumerate(
        [Types.INT(), None, Types.STRING(), Types.DOUBLE(), Types.BOOLEAN(), Types.LIST(Types.LONG())]
    ):
        if type_info is not None:
            undeclared.map(lambda x, position=position: x[position], output_type=type_info).print(f"field {position}")
    undeclared.map(lambda x: x[2]).print("undeclared text")
    undeclared.map(lambda x: x[6]).print("undeclared dict")
    undeclared.map(lambda x: [1, 2], output_type=Types.LIST(Types.INT())).print("list")
    undeclared.map(lambda x: {"a": 1.5}, output_type=Types.MAP(Types.STRING(), Types.DOUBLE())).print("map")
    undeclared.map(lambda x: {"set": {1}}, output_type=Types.PICKLED_BYTE_ARRAY()).print("pickled")
    env.execute("printed types")


def rows():
    """Rows keep their fields, names and kinds behind key_by()."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    people = env.from_collection([Row("Ann", 31, [1]), Row("Bob", 40, []), Row("Ann", 32, [3, 4])], type_info=NAMED)
    people.key_by(lambda row: row.name, key_type=Types.STRING()).map(
        lambda row: f"{row.name} {row['age']} {row[2]} {len(row)} {row.as_dict()} {row.get_row_kind()}"
    ).print("fields")

    def changed(row):
        row.set_row_kind(RowKind.UPDATE_AFTER)
        row[1] += 1
        return row

    people.map(changed, output_type=NAMED).print("changed")
    people.map(
        lambda row: (row.name, Row(row.age, row.name)),
        output_type=Types.TUPLE([Types.STRING(), Types.ROW([Types.INT(), Types.STRING()])]),
    ).key_by(lambda pair: pair[0]).map(lambda pair: f"{pair[1][0]} {pair[1]!r} {type(pair[1]).__name__}").print("inner")
    people.map(lambda row: row).print("not declared")
    env.execute("rows")


if __name__ == "__main__":
    printed()
    rows()
