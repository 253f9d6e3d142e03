"""The values that the builders of file sinks take, and those that they refuse."""

from collections.abc import Callable
from typing import Any

import pytest

from flowlet.common.serialization import Encoder
from flowlet.datastream.connectors.file_system import (
    BucketAssigner,
    DateTimeBucketAssigner,
    FileSink,
    OutputFileConfig,
    RollingPolicy,
)
from flowlet.datastream.formats.csv import CsvBulkWriters, CsvSchema
from flowlet.errors import JobGraphError

NOON_MS = 1_719_835_205_678  # 2024-07-01 12:00:05.678 UTC


def rows() -> Any:
    return FileSink.for_row_format("/data", Encoder.simple_string_encoder())


def bulk() -> Any:
    return FileSink.for_bulk_format(
        "/data", CsvBulkWriters.for_schema(CsvSchema.builder().add_string_column("a").build())
    )


@pytest.mark.parametrize(
    ("pattern", "zone", "wanted"),
    [
        ("yyyy-MM-dd--HH", "UTC", "2024-07-01--12"),
        ("yyyy-MM-dd--HH", "Europe/Berlin", "2024-07-01--14"),
        ("'day='yyMMdd/HHmm", "UTC", "day=240701/1200"),
        ("ss.SSS", "UTC", "05.678"),
        ("''HH''", "UTC", "'12'"),
    ],
)
def test_buckets_by_time_follow_the_format(pattern: str, zone: str, wanted: str) -> None:
    assigner = BucketAssigner.date_time_bucket_assigner(pattern, zone)

    assert isinstance(assigner, DateTimeBucketAssigner)
    assert assigner.bucket_at(NOON_MS) == wanted


def test_names_of_files_have_a_beginning_and_an_end() -> None:
    config = OutputFileConfig.builder().with_part_prefix("log").with_part_suffix(".txt").build()

    assert (config.get_part_prefix(), config.get_part_suffix()) == ("log", ".txt")
    assert OutputFileConfig.builder().build().get_part_suffix() == ""


def test_a_file_url_is_a_path() -> None:
    assert FileSink.for_row_format("file:///data", Encoder.simple_string_encoder()).build().base_path == "/data"


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: FileSink.for_row_format("", Encoder.simple_string_encoder()),
        "a file sink writes into a folder given as text",
    ),
    (
        lambda: FileSink.for_row_format("s3://bucket/x", Encoder.simple_string_encoder()),
        "'s3://bucket/x' has the scheme 's3'.*: mount that store",
    ),
    (lambda: FileSink.for_row_format("/data", print), "needs an encoder"),  # type: ignore[arg-type]  # refused at run time
    (lambda: rows().with_rolling_policy(7), r"with_rolling_policy\(\) needs a RollingPolicy"),
    (lambda: bulk().with_rolling_policy(RollingPolicy.default_rolling_policy()), "needs RollingPolicy.on_checkpoint"),
    (lambda: rows().with_bucket_assigner("x"), r"with_bucket_assigner\(\) needs a BucketAssigner"),
    (lambda: rows().with_bucket_check_interval(0), "milliseconds above 0"),
    (lambda: rows().with_output_file_config("x"), r"needs OutputFileConfig.builder\(\)"),
    (lambda: rows().enable_compact(None, None), "cannot compact files yet"),
    (lambda: RollingPolicy.default_rolling_policy(part_size=0), "part_size must be a whole number above 0"),
    (lambda: OutputFileConfig.builder().with_part_prefix(".x"), "hidden"),
    (lambda: OutputFileConfig.builder().with_part_suffix("a/b"), "without slashes"),
    (lambda: BucketAssigner.date_time_bucket_assigner("yyyy-QQ"), "has the letter 'Q'"),
    (lambda: BucketAssigner.date_time_bucket_assigner("HH'x"), "a quote without its end"),
    (lambda: BucketAssigner.date_time_bucket_assigner("HH", "Mars/Base"), "the time zone 'Mars/Base' is unknown"),
    (lambda: Encoder.simple_string_encoder("none"), "charset 'none' is unknown"),
    (lambda: Encoder.simple_string_encoder("utf-16"), "byte order mark"),
    (lambda: CsvSchema.builder().build(), "at least one column"),
    (lambda: CsvSchema.builder().add_string_column("a").add_number_column("a").build(), "two columns of the name 'a'"),
    (lambda: CsvSchema.builder().set_column_separator("ab"), "needs one character"),
    (lambda: CsvSchema.builder().set_line_separator("x"), "needs one of"),
    (lambda: CsvBulkWriters.for_schema("a"), r"for_schema\(\) needs a schema"),  # type: ignore[arg-type]  # as above
]


@pytest.mark.parametrize(("build", "message"), REFUSED)
def test_what_makes_no_sense_is_refused_when_the_job_is_built(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(JobGraphError, match=message):
        build()
