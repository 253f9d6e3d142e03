"""A write-ahead sink makes its writer and its committer; a subclass says what is written where."""

from collections.abc import Sequence
from typing import Any

import pytest

from flowlet.datastream.connectors.base import CommitRequest, SinkWriterContext, WriterInitContext
from flowlet.datastream.connectors.write_ahead_sink import WriteAheadSink, WriteAheadTarget

WRITTEN: list[Any] = []


class ListTarget(WriteAheadTarget):
    def committed(self, writer: str) -> int:
        return -1

    def commit(self, writer: str, number: int, rows: Sequence[Any]) -> None:
        WRITTEN.append((number, list(rows)))


class ListSink(WriteAheadSink):
    def create_target(self, context: WriterInitContext) -> WriteAheadTarget:
        return ListTarget()


@pytest.mark.filterwarnings("error")
def test_rows_go_from_the_writer_to_the_target() -> None:
    WRITTEN.clear()
    context: Any = None
    sink = ListSink()

    writer: Any = sink.create_writer(context)
    writer.write_all([1, 2], SinkWriterContext())
    writer.flush(end_of_input=False)
    committer = sink.create_committer(context)
    committer.commit([CommitRequest(each) for each in writer.prepare_commit()])
    committer.close()
    writer.close()

    assert WRITTEN == [(0, [1, 2])]
