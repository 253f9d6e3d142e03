"""The content of text files for records of declared types: the text that Java's ``SimpleStringEncoder`` gives them in
PyFlink.
"""

import datetime
import decimal
from pathlib import Path
from typing import Any, Final

import pytest

from flowlet.common import Encoder, Row, RowKind, TypeInformation, Types
from flowlet.datastream import DataStream, StreamExecutionEnvironment
from flowlet.datastream.connectors.file_system import BucketAssigner, FileSink
from tests.flowlet.typed import printed_types

GOLDEN: Final = Path(__file__).with_name("printed_types.txt").read_text("utf-8").splitlines()


def write(stream: DataStream, folder: Path) -> None:
    builder = FileSink.for_row_format(str(folder), Encoder.simple_string_encoder())
    stream.sink_to(builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())


def lines_of(folder: Path) -> list[str]:
    return [line for file in sorted(folder.glob("part-*")) for line in file.read_text("utf-8").splitlines()]


def written(folder: Path, records: list[Any], type_info: TypeInformation | None) -> list[str]:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    stream = env.from_collection(list(range(len(records)))).map(records.__getitem__, output_type=type_info)
    write(stream, folder)
    env.execute()
    return lines_of(folder)


@pytest.mark.slow
def test_files_hold_the_lines_that_print_shows(tmp_path: Path) -> None:
    """Both write the lines that PyFlink printed for records of every type but rows by themselves."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    programs = [each for each in printed_types.programs("flowlet") if not each[0].startswith("row")]
    for name, declared, records in programs:
        stream = env.from_collection(list(range(len(records)))).map(records.__getitem__, output_type=declared)
        write(stream, tmp_path / name)

    env.execute()

    for name, _, _ in programs:
        expected = [line.removeprefix(f"{name}> ") for line in GOLDEN if line.startswith(f"{name}> ")]
        assert (name, lines_of(tmp_path / name)) == (name, expected)


def test_a_row_is_written_by_java_with_its_kind(tmp_path: Path) -> None:
    """``print`` shows Python's texts of its fields; a file has Java's."""
    row_type = Types.ROW([Types.STRING(), Types.DOUBLE(), Types.BOOLEAN(), Types.STRING()])
    records = [Row("be", 2.0, True, None), Row.of_kind(RowKind.DELETE, "to", 1e-5, False, "x")]

    assert written(tmp_path, records, row_type) == ["+I[be, 2.0, true, null]", "-D[to, 1.0E-5, false, x]"]


def test_rows_hold_everything_as_java_writes_it(tmp_path: Path) -> None:
    row_type = Types.ROW_NAMED(
        ["pair", "map", "bytes", "texts", "row", "date", "decimal"],
        [
            Types.TUPLE([Types.STRING(), Types.INT()]),
            Types.MAP(Types.STRING(), Types.INT()),
            Types.PRIMITIVE_ARRAY(Types.BYTE()),
            Types.BASIC_ARRAY(Types.STRING()),
            Types.ROW([Types.BOOLEAN()]),
            Types.SQL_DATE(),
            Types.BIG_DEC(),
        ],
    )
    record = Row(
        ("be", 2), {"k": 1}, b"a\xff", ["x", None], Row(True), datetime.date(2020, 1, 2), decimal.Decimal("1.10")
    )

    assert written(tmp_path, [record], row_type) == [
        "+I[(be,2), {k=1}, [97, -1], [x, null], +I[true], 2020-01-02, 1.10]"
    ]


def test_records_without_a_declared_type_have_pythons_text(tmp_path: Path) -> None:
    """PyFlink writes the address of a byte array of Java there, which is of no use."""
    assert written(tmp_path, [("be", 2), True, None, {"k": 1}], None) == ["('be', 2)", "True", "None", "{'k': 1}"]


def test_results_of_a_keyed_sum_keep_their_declared_type(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    pairs = env.from_collection([("be", 1), ("be", 1)], Types.TUPLE([Types.STRING(), Types.INT()]))
    write(pairs.key_by(lambda pair: pair[0]).sum(1), tmp_path)

    env.execute()

    assert lines_of(tmp_path) == ["(be,1)", "(be,2)"]


def test_a_file_in_another_charset_has_the_same_text(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    builder = FileSink.for_row_format(str(tmp_path), Encoder.simple_string_encoder("ISO-8859-1"))
    pairs = env.from_collection([("bé", True)], Types.TUPLE([Types.STRING(), Types.BOOLEAN()]))
    pairs.sink_to(builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())

    env.execute()

    assert [file.read_bytes() for file in tmp_path.glob("part-*")] == ["(bé,true)\n".encode("latin-1")]
