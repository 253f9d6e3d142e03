"""One case per format: how a sink of numbers is built, and how its files are read, without the engine."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flowlet.common.serialization import Encoder
from flowlet.common.typeinfo import Types
from flowlet.datastream.connectors.file_system import BucketAssigner, FileSink, RollingPolicy
from flowlet.datastream.formats.csv import CsvBulkWriters, CsvSchema
from flowlet.datastream.formats.json_lines import JsonLinesEncoder
from flowlet.datastream.formats.parquet import ParquetBulkWriters
from flowlet.sinks.commit_runner import BadRecordError

NEVER_BY_TIME = 10**9
ROW = Types.ROW_NAMED(["number"], [Types.LONG()])


@contextmanager
def refused(record: Any, reason: str) -> Iterator[None]:
    """Expect that a writer refuses this record, for this reason."""
    with pytest.raises(BadRecordError) as caught:
        yield
    assert caught.value.record == record
    assert re.search(reason, str(caught.value.__cause__))


@dataclass(frozen=True)
class Format:
    """A format; records are tuples of one number, or the number itself."""

    name: str
    builder: Callable[[str], Any]
    numbers_of: Callable[[Path], Iterable[int]]
    is_row: bool
    of_tuples: bool = True

    def sink(self, folder: Path, part_size: int = 10**9) -> FileSink:
        builder = self.builder(str(folder)).with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        if self.is_row:
            builder.with_rolling_policy(RollingPolicy.default_rolling_policy(part_size, NEVER_BY_TIME, NEVER_BY_TIME))
        return builder.build()  # type: ignore[no-any-return]  # of either builder

    def records(self, numbers: Iterable[int]) -> list[Any]:
        return [(each,) if self.of_tuples else each for each in numbers]

    def visible(self, folder: Path) -> list[int]:
        """Return all numbers in files that readers see."""
        files = [each for each in sorted(folder.rglob("*")) if each.is_file() and not each.name.startswith(".")]
        return [number for file in files for number in self.numbers_of(file)]


def _csv(path: Path) -> list[int]:
    with open(path, newline="", encoding="utf-8") as file:
        return [int(row[0]) for row in csv.reader(file)]


def _json(path: Path) -> list[int]:
    return [json.loads(line)[0] for line in path.read_text().splitlines()]


SCHEMA = CsvSchema.builder().add_number_column("number").build()
FORMATS = [
    Format(
        "text",
        lambda folder: FileSink.for_row_format(folder, Encoder.simple_string_encoder()),
        lambda path: [int(line) for line in path.read_text().splitlines()],
        is_row=True,
        of_tuples=False,
    ),
    Format("json", lambda folder: FileSink.for_row_format(folder, JsonLinesEncoder()), _json, is_row=True),
    Format(
        "csv", lambda folder: FileSink.for_bulk_format(folder, CsvBulkWriters.for_schema(SCHEMA)), _csv, is_row=False
    ),
    Format(
        "parquet",
        lambda folder: FileSink.for_bulk_format(folder, ParquetBulkWriters.for_row_type(ROW)),
        lambda path: pq.read_table(path).column("number").to_pylist(),
        is_row=False,
    ),
]


def fingerprint(numbers: Iterable[int]) -> tuple[int, int, int]:
    """Count, sum, and xor of hashes."""
    count = total = mixed = 0
    for each in numbers:
        count += 1
        total += each
        mixed ^= (each * 0x9E3779B97F4A7C15 + 0x7F4A7C15) & (2**64 - 1)
    return count, total, mixed
