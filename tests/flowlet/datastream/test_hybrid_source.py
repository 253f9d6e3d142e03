from collections.abc import Callable
from typing import Any

import pytest

from flowlet.datastream.connectors import FileSource, StreamFormat
from flowlet.datastream.connectors.base import BuiltInSource, Source
from flowlet.datastream.connectors.hybrid_source import HybridSource
from flowlet.datastream.connectors.number_seq import NumberSequenceSource
from flowlet.errors import JobGraphError

NUMBERS = NumberSequenceSource(0, 1)


class Endless(BuiltInSource):
    is_bounded = False


def test_only_the_last_source_may_be_without_an_end() -> None:
    builder = HybridSource.builder(NUMBERS)
    assert builder.build().is_bounded

    endless = builder.add_source(Endless())

    assert not endless.build().is_bounded
    with pytest.raises(JobGraphError, match="its Endless has no end; add it last"):
        endless.add_source(NUMBERS)


def test_the_sources_stay_in_their_order() -> None:
    files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), "/a").build()

    assert HybridSource.builder(files).add_source(NUMBERS).add_source(files).build().sources == (files, NUMBERS, files)


@pytest.mark.parametrize(
    "make",
    [
        lambda: HybridSource.builder(Source()),
        lambda: HybridSource.builder(NUMBERS).add_source(HybridSource.builder(NUMBERS).build()),
        lambda: HybridSource.builder(7),  # type: ignore[arg-type]  # the mistake
    ],
)
def test_what_has_no_splits_of_its_own_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(JobGraphError, match="a hybrid source consists of sources in splits"):
        make()
