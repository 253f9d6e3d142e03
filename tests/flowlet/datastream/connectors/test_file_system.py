"""Promises of ``FileSource``."""

import pickle

import pytest

from flowlet.datastream.connectors.base import Source
from flowlet.datastream.connectors.file_system import FileSource, StreamFormat
from flowlet.errors import JobGraphError


def test_a_source_keeps_what_it_was_built_with() -> None:
    source = (
        FileSource.for_record_stream_format(StreamFormat.text_line_format("latin-1"), "/a", "/b")
        .process_static_file_set()
        .build()
    )

    assert isinstance(source, Source)
    assert (source.paths, source.stream_format.charset_name, source.is_bounded) == (("/a", "/b"), "latin-1", True)
    assert pickle.loads(pickle.dumps(source)).paths == ("/a", "/b")


def test_text_is_utf_8_unless_told_otherwise() -> None:
    assert StreamFormat.text_line_format().charset_name == "UTF-8"


@pytest.mark.parametrize("charset", ["no-such", "", "hex", None])
def test_an_unknown_charset_is_refused(charset: str) -> None:
    with pytest.raises(JobGraphError, match="is unknown; use one that Python knows"):
        StreamFormat.text_line_format(charset)


def test_a_charset_with_another_line_end_is_accepted() -> None:
    assert StreamFormat.text_line_format("utf-16").charset_name == "utf-16"


def test_a_source_needs_paths_and_a_format() -> None:
    with pytest.raises(JobGraphError, match="at least one path"):
        FileSource.for_record_stream_format(StreamFormat.text_line_format())
    with pytest.raises(JobGraphError, match="needs a format such as"):
        FileSource.for_record_stream_format("text", "a")  # type: ignore[arg-type]  # refused at run time as well
    for path in ("", None, 7):
        with pytest.raises(JobGraphError, match=f"paths given as texts, got {path!r}"):
            FileSource.for_record_stream_format(StreamFormat.text_line_format(), "a", path)  # type: ignore[arg-type]  # as above


def test_a_path_must_get_through_to_the_tasks() -> None:
    for path in ("/café", "/a\nb", "/日本", "/\ue000"):
        assert FileSource.for_record_stream_format(StreamFormat.text_line_format(), path).build().paths == (path,)
    with pytest.raises(JobGraphError, match=r"reads paths that are UTF-8, got 'caf\\udce9'; rename the file"):
        FileSource.for_record_stream_format(StreamFormat.text_line_format(), "caf\udce9")


def test_a_file_is_cut_only_if_that_was_asked_for() -> None:
    builder = FileSource.for_record_stream_format(StreamFormat.text_line_format(), "a")

    assert builder.build().split_bytes is None
    assert builder.set_split_size(1 << 24).build().split_bytes == 1 << 24


@pytest.mark.parametrize("split_bytes", [0, -1, 1.5, "16M", None, True])
def test_a_split_has_a_size(split_bytes: int) -> None:
    builder = FileSource.for_record_stream_format(StreamFormat.text_line_format(), "a")

    with pytest.raises(JobGraphError, match="needs a number of bytes above 0"):
        builder.set_split_size(split_bytes)


def test_what_this_version_cannot_do_is_absent() -> None:
    builder = FileSource.for_record_stream_format(StreamFormat.text_line_format(), "a")

    for name in ("monitor_continuously", "set_file_enumerator", "set_split_assigner"):
        assert not hasattr(builder, name)
