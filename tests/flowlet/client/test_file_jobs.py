"""Programs that read files, on a cluster in this process: the readers' shares, their order, and the end if something is
wrong.
"""

import bz2
import gzip
import lzma
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest

from flowlet.common import WatermarkStrategy
from flowlet.common.job_status import JobStatus
from flowlet.connectors.files.reader import TextLineReader
from flowlet.connectors.files.split import FileSplitEnumerator
from flowlet.datastream import (
    DataStream,
    KeyedProcessFunction,
    ProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.connectors import DiscardingSink, FileSource, StreamFormat
from flowlet.errors import JobExecutionError
from netstack.availability import AvailabilityFuture
from tests.flowlet.client.conftest import SharedCluster
from tests.flowlet.client.jobs import hold, ran, reached, released
from tests.waiting import PATIENCE_S


@pytest.fixture
def environment(cluster: SharedCluster) -> StreamExecutionEnvironment:
    return cluster.environment()


def lines_of(environment: StreamExecutionEnvironment, *paths: Path, split_bytes: int | None = None) -> DataStream:
    builder = FileSource.for_record_stream_format(StreamFormat.text_line_format(), *map(str, paths))
    if split_bytes is not None:
        builder.set_split_size(split_bytes)
    return environment.from_source(builder.build(), WatermarkStrategy.no_watermarks(), "read")


class Numbered(KeyedProcessFunction):
    """The lines of each key with their place among them."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen: defaultdict[int, int] = defaultdict(int)

    def process_element(
        self, value: tuple[int, int], ctx: KeyedProcessFunction.Context
    ) -> Iterator[tuple[int, int, int]]:
        key, number = value
        yield key, self._seen[key], number
        self._seen[key] += 1


def test_records_of_a_key_keep_the_order_of_their_file(environment: StreamExecutionEnvironment, tmp_path: Path) -> None:
    """A file of several blocks, read by one of two subtasks whichever asks first."""
    path = tmp_path / "numbers"
    path.write_text("".join(f"{number % 7} {number}\n" for number in range(60_000)))

    pairs = lines_of(environment, path).map(lambda line: (int(line.split()[0]), int(line.split()[1])))
    found = ran(pairs.key_by(lambda pair: pair[0]).process(Numbered()))

    assert len(found) == 60_000
    assert all(number == 7 * place + key for key, place, number in found)


class Whose(ProcessFunction):
    """Each line with the subtask that read it; the first subtask reads no second file before the others have read all
    the rest.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, value: str, ctx: ProcessFunction.Context) -> Iterator[tuple[str, int]]:
        if value == "the largest":
            hold("largest")
        elif value == "the smallest":
            released["largest"].set()
        yield value, self._subtask


def test_files_go_to_whoever_asks_the_largest_first(environment: StreamExecutionEnvironment, tmp_path: Path) -> None:
    """One subtask is held up by the largest file; the other one reads all others meanwhile, down to the smallest."""
    names = ["the smallest", "the largest", "the third", "the fourth", "the second"]
    sizes = dict(zip(names, (1, 5, 3, 2, 4), strict=True))
    for number, name in enumerate(names):
        # Larger than what a reader asks for early.
        (tmp_path / f"file {number}").write_text(f"{name}\n{'x' * (sizes[name] * 600_000)}\n")

    found = dict(line for line in ran(lines_of(environment, tmp_path).process(Whose())) if not line[0].startswith("x"))

    assert set(found) == set(names)
    busy = found.pop("the largest")
    assert set(found.values()) == {1 - busy}


def test_ranges_of_one_file_keep_both_subtasks_busy_if_that_was_asked_for(
    environment: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_text("the largest\n" + "x\n" * 20_000 + "the smallest\n")

    found = ran(lines_of(environment, path, split_bytes=4_000).process(Whose()))

    assert len(found) == 20_002
    assert {subtask for _, subtask in found} == {0, 1}
    assert dict(found)["the largest"] != dict(found)["the smallest"]


def test_compressed_files_are_read_like_others(environment: StreamExecutionEnvironment, tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(5_000)]
    content = "\n".join(lines).encode()
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    (tmp_path / "b.bz2").write_bytes(bz2.compress(content))
    (tmp_path / "c.xz").write_bytes(lzma.compress(content))
    (tmp_path / "d.zst").write_bytes(pyarrow.compress(content, codec="zstd", asbytes=True))

    found = ran(lines_of(environment, tmp_path, split_bytes=1_000))

    assert sorted(found) == sorted(5 * lines)


def test_a_file_that_is_missing_fails_the_job_and_is_named(
    environment: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("x\n")

    with pytest.raises(JobExecutionError) as caught:
        ran(lines_of(environment, tmp_path / "a", tmp_path / "missing"))

    assert re.search(r"failed: task 'Source: read.*'\n", str(caught.value))
    assert str(caught.value).endswith(
        f"flowlet.errors.FlowletError: cannot read {tmp_path / 'missing'}: No such file or directory"
    )


def test_a_damaged_archive_fails_the_job_and_is_named(environment: StreamExecutionEnvironment, tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"x\n" * 10_000)[:-4])

    reason = f"cannot read {tmp_path / 'a.gz'}: it ends in the middle of its gzip data"
    with pytest.raises(JobExecutionError, match=reason):
        ran(lines_of(environment, tmp_path / "a.gz"))


def test_a_job_can_be_cancelled_while_its_readers_wait(
    environment: StreamExecutionEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server may take for ever to list a folder; the search goes on in vain, and the job waits no longer."""
    monkeypatch.setattr(FileSplitEnumerator, "discover", lambda *_: hold("listing"))
    future_of = TextLineReader.available_future

    def available_future(reader: TextLineReader) -> AvailabilityFuture:
        reached["waiting"].set()
        return future_of(reader)

    monkeypatch.setattr(TextLineReader, "available_future", available_future)
    lines_of(environment, tmp_path).sink_to(DiscardingSink())
    job = environment.execute_async("slow")
    for name in ("listing", "waiting"):
        assert reached[name].wait(PATIENCE_S)

    job.cancel().result()
    with pytest.raises(JobExecutionError, match="was cancelled"):
        job.get_job_execution_result().result()

    assert job.get_job_status().result() is JobStatus.CANCELED
    released["listing"].set()
