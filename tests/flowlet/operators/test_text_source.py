import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.errors import ConfigError, FlowletError
from flowlet.operators.source import SourceOperator, SourceReader
from flowlet.operators.text_source import FileSplit, TextLineReader, TextLineSource, deal
from flowlet.records import Chunk
from tests.flowlet.operators.harness import Harness


def reference_lines(text: str) -> list[str]:
    r"""As Java's BufferedReader: \n, \r\n and \r end a line; a last one without an end counts."""
    lines = re.split(r"\r\n|\n|\r", text)
    return lines if lines[-1] else lines[:-1]


def lines_of(reader: SourceReader) -> list[str]:
    lines: list[str] = []
    while (chunk := reader.poll_chunk()) is not None:
        assert isinstance(chunk, Chunk)
        assert 0 < len(chunk) <= 2000
        assert chunk.timestamps is None
        lines += chunk.values
    reader.close()
    return lines


def read(path: Path, charset: str = "UTF-8", *, split_bytes: int, block_bytes: int) -> list[str]:
    """All splits, each read on its own, in their order."""
    lines = []
    for split in TextLineSource([str(path)], charset, split_bytes=split_bytes).list_splits():
        lines += lines_of(TextLineReader([split], charset, block_bytes=block_bytes))
    return lines


LINE_ENDS = [b"\n", b"\r", b"\r\n"]
TEXTS = [b"a", b"bc", b"", "é".encode(), "日".encode(), "😀".encode()]
NO_LINE_ENDS = [b"\x85", b"\x0b", b"\x00", "\u2028".encode()]
FRAGMENTS = st.sampled_from([*LINE_ENDS, *LINE_ENDS, *TEXTS, *NO_LINE_ENDS, b"\xff", b"\xe2\x82"])
CONTENTS = st.lists(FRAGMENTS, max_size=30).map(b"".join) | st.binary(max_size=60)


@given(content=CONTENTS, split_bytes=st.integers(1, 40), block_bytes=st.integers(1, 40))
def test_splits_together_give_every_line_once(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, split_bytes: int, block_bytes: int
) -> None:
    """Whatever the bytes, the sizes of splits and of reads; a line that spans splits belongs to one."""
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(content)

    assert read(path, split_bytes=split_bytes, block_bytes=block_bytes) == reference_lines(content.decode("utf-8", "replace"))


CHARSETS = ["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1", "shift_jis", "gb18030", "cp037", "ascii", "utf-7", "iso2022_jp", "hz"]


@pytest.mark.parametrize("charset", CHARSETS)
@given(content=CONTENTS, split_bytes=st.integers(1, 40), block_bytes=st.integers(1, 40))
def test_other_charsets(tmp_path_factory: pytest.TempPathFactory, charset: str, content: bytes, split_bytes: int, block_bytes: int) -> None:
    """Valid text in each of them, also those in which a line end is not one byte."""
    # "~" and ESC begin the escapes of the stateful ones: alone they are no text in them.
    text = content.translate(None, b"~\x1b").decode("utf-8", "ignore").encode(charset, "ignore").decode(charset)
    path = tmp_path_factory.getbasetemp() / f"{charset}.txt"
    path.write_bytes(text.encode(charset))

    assert read(path, charset, split_bytes=split_bytes, block_bytes=block_bytes) == reference_lines(text)


@pytest.mark.parametrize("charset", ["shift_jis", "gb18030", "euc_kr", "utf-8"])
def test_a_broken_character_does_not_swallow_its_lines_end(charset: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.txt"
    path.write_bytes(b"a\x81\nb\xe0\r\nc\xa4\xd4\nd\xf0\re")

    lines = read(path, charset, split_bytes=100, block_bytes=100)

    assert [line[0] for line in lines] == ["a", "b", "c", "d", "e"]


def test_a_line_of_a_megabyte_and_invalid_bytes(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"first\n" + b"x" * 1_000_000 + b"\xff\nlast")

    assert read(path, split_bytes=100_000, block_bytes=4096) == ["first", "x" * 1_000_000 + "\ufffd", "last"]


def test_a_line_longer_than_the_limit_names_file_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "endless.txt"
    path.write_bytes(b"first\n" + b"x" * 500)
    split = FileSplit(str(path), 0, 506)

    with pytest.raises(FlowletError, match=r"endless.txt: the line at offset 6 is longer than 100 bytes"):
        lines_of(TextLineReader([split], "UTF-8", block_bytes=16, max_line_bytes=100))
    assert len(lines_of(TextLineReader([split], "UTF-8", block_bytes=16, max_line_bytes=500))) == 2


def test_lines_come_in_chunks_of_about_the_same_size(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_bytes(b"x\n" * 5001)
    reader = TextLineSource([str(path)]).create_reader(0, 1)

    sizes = []
    while (chunk := reader.poll_chunk()) is not None:
        assert isinstance(chunk, Chunk)
        sizes.append(len(chunk))

    assert sizes == [1667, 1667, 1667]


def test_empty_files_have_no_lines(tmp_path: Path) -> None:
    for name, content in (("a", b""), ("b", b"x"), ("c", b"")):
        (tmp_path / name).write_bytes(content)
    source = TextLineSource([str(tmp_path / name) for name in "abc"])

    assert [split.path for split in source.list_splits()] == [str(tmp_path / "b")]
    assert lines_of(source.create_reader(0, 1)) == ["x"]
    assert lines_of(TextLineSource([str(tmp_path / "a")]).create_reader(0, 1)) == []
    assert lines_of(TextLineSource([str(tmp_path / "a")], "utf-16").create_reader(0, 1)) == []
    assert lines_of(TextLineSource([]).create_reader(0, 1)) == []


def test_folders_are_read_in_order_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/2", "a/1", ".hidden", "_SUCCESS", ".git/config", "a/_tmp/x", "c.d/e"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)

    source = TextLineSource([str(tmp_path), str(tmp_path / "_SUCCESS")])

    assert lines_of(source.create_reader(0, 1)) == ["b.txt", "a/1", "a/2", "c.d/e", "_SUCCESS"]


def test_splits_cover_each_file_in_equal_steps(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 25)

    splits = TextLineSource([str(path)], split_bytes=10).list_splits()

    assert [(split.start, split.end, split.size_bytes) for split in splits] == [(0, 10, 10), (10, 20, 10), (20, 25, 5)]
    assert len(TextLineSource([str(path)], "utf-16", split_bytes=10).list_splits()) == 1


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 6))
def test_splits_are_dealt_once_and_evenly(sizes: list[int], parallelism: int) -> None:
    """Two subtasks differ by no more than the largest split; within a subtask the order is kept."""
    splits = [FileSplit(f"file {index:02}", 0, size) for index, size in enumerate(sizes)]

    shares = deal(splits, parallelism)

    assert sorted((split for share in shares for split in share), key=splits.index) == splits
    assert all(share == sorted(share, key=splits.index) for share in shares)
    loads = [sum(split.size_bytes for split in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_largest_first() -> None:
    splits = [FileSplit("a", 0, 1), FileSplit("b", 0, 5), FileSplit("c", 0, 3), FileSplit("d", 0, 3)]

    assert deal(splits, 2) == [[splits[0], splits[1]], [splits[2], splits[3]]]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_the_subtasks_together_read_everything_as_often_as_asked(parallelism: int, tmp_path: Path) -> None:
    paths = []
    for number in range(5):
        paths.append(tmp_path / str(number))
        paths[-1].write_text("".join(f"{number}.{index}\n" for index in range(number * 50)))
    source = TextLineSource([str(path) for path in [*paths, paths[1]]], repeat=2, split_bytes=64)

    found = [line for subtask in range(parallelism) for line in lines_of(source.create_reader(subtask, parallelism))]

    once = [line for path in [*paths, paths[1]] for line in path.read_text().splitlines()]
    assert sorted(found) == sorted(once * 2)


def test_the_constructor_looks_at_nothing() -> None:
    """The files are where the tasks run."""
    source = TextLineSource(["/nowhere/at all"], "no such charset")

    assert source.is_bounded


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.txt"
    with pytest.raises(FlowletError, match=f"cannot read {missing}: No such file or directory") as caught:
        TextLineSource([str(missing)]).list_splits()
    assert isinstance(caught.value.__cause__, FileNotFoundError)

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FlowletError, match=f"cannot read {pipe}: it is neither a file nor a folder"):
        TextLineSource([str(pipe)]).list_splits()

    reader = TextLineReader([FileSplit(str(missing), 0, 5)], "UTF-8")
    with pytest.raises(FlowletError, match=f"cannot read {missing}: No such file or directory"):
        reader.poll_chunk()

    (tmp_path / "a").write_text("x")
    for charset in ("no such charset", "hex"):
        with pytest.raises(ConfigError, match=f"unknown charset '{charset}'"):
            TextLineSource([str(tmp_path / "a")], charset).list_splits()


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)

    with pytest.raises(FlowletError, match=f"cannot list {tmp_path}: Permission denied"):
        TextLineSource([str(tmp_path)]).list_splits()


def test_closing_early_closes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x\n" * 5000)
    before = set(os.listdir("/proc/self/fd"))
    harness = Harness(SourceOperator(TextLineSource([str(path)])))
    assert harness.operator.emit_next()
    assert set(os.listdir("/proc/self/fd")) != before

    harness.operator.close()

    assert set(os.listdir("/proc/self/fd")) == before


def test_the_progress_is_the_fraction_of_the_bytes_that_were_read(tmp_path: Path) -> None:
    """Whole splits count; the source operator keeps the last value when the reader is gone."""
    (tmp_path / "a").write_bytes(b"one\n")
    (tmp_path / "b").write_bytes(b"x" * 11 + b"\n")
    reader = TextLineSource([str(tmp_path / "a"), str(tmp_path / "b")]).create_reader(0, 1)
    assert isinstance(reader, TextLineReader)

    before = reader.progress
    reader.poll_chunk()
    reader.poll_chunk()
    between = reader.progress
    last = reader.poll_chunk()

    assert (before, between, last, reader.progress) == (0.0, 0.25, None, 1.0)
    assert TextLineReader([], "UTF-8").progress == 1.0


def test_a_source_operator_tells_the_progress_of_its_reader_also_after_its_end(tmp_path: Path) -> None:
    """Not open yet: unknown; closed: as it was."""
    (tmp_path / "a").write_bytes(b"one\n")
    operator = SourceOperator(TextLineSource([str(tmp_path / "a")]))
    assert operator.progress is None
    Harness(operator, pickled=False)

    while operator.emit_next():
        pass
    operator.close()

    assert operator.progress == 1.0
