import bz2
import gzip
import lzma
import os
import pickle
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flowlet.connectors.files import reader as text_line_source
from flowlet.connectors.files.reader import SplitPosition, TextLineReader, TextPosition, text_lines
from flowlet.connectors.files.split import compression_of
from flowlet.connectors.split_reader import EARLY_BYTES, AssignedSource
from flowlet.errors import FlowletError
from flowlet.operators.source_operator import SourceOperator
from flowlet.operators.source_reader import SourceReader
from flowlet.records import Chunk
from flowlet.splits.split_kinds import FileSet, FileSplit
from tests.flowlet.operators.harness import Harness
from tests.flowlet.operators.local_splits import enumerator_of, requests_to
from tests.flowlet.splits.all_splits import all_splits


def reference_lines(text: str) -> list[str]:
    r"""Split the text as Java's BufferedReader does: \n, \r\n and \r end a line; a last one without an end counts."""
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


def alone(source: AssignedSource[TextLineReader]) -> TextLineReader:
    """Return the only reader of a source, served by its enumerator."""
    enumerator, reader = enumerator_of(source), source.create_reader(0, 1)
    enumerator.discover(num_readers=1)
    reader.start(requests_to(enumerator, reader))
    return reader


def lines_of_all(path: Path) -> list[str]:
    """Return the lines of a file, or of the files of a folder, as a job reads them."""
    return lines_of(alone(text_lines(FileSet((str(path),)))))


def reader_of(*splits: FileSplit, charset: str = "UTF-8", **limits: int) -> TextLineReader:
    """Return a reader that gets these splits and no more."""
    reader = TextLineReader(charset, **limits)
    reader.start(lambda: None)
    reader.add_splits(splits, 0)
    reader.no_more_splits()
    return reader


def read(path: Path, charset: str = "UTF-8", *, split_bytes: int, block_bytes: int) -> list[str]:
    """Return all splits, each read on its own, in their order."""
    lines = []
    for split in all_splits([str(path)], charset, split_bytes):
        lines += lines_of(reader_of(split, charset=charset, block_bytes=block_bytes))
    return lines


LINE_ENDS = [b"\n", b"\r", b"\r\n"]
TEXTS = [b"a", b"bc", b"", "é".encode(), "日".encode(), "😀".encode()]
NO_LINE_ENDS = [b"\x85", b"\x0b", b"\x00", "\u2028".encode()]
FRAGMENTS = st.sampled_from([*LINE_ENDS, *LINE_ENDS, *TEXTS, *NO_LINE_ENDS, b"\xff", b"\xe2\x82"])


def is_text(content: bytes) -> bool:
    """Whether its first bytes are not those of a compressed file or an archive."""
    try:
        return compression_of("any.txt", content) is None
    except FlowletError:
        return False


CONTENTS = (st.lists(FRAGMENTS, max_size=30).map(b"".join) | st.binary(max_size=60)).filter(is_text)


@given(content=CONTENTS, split_bytes=st.integers(1, 40), block_bytes=st.integers(1, 40))
def test_splits_together_give_every_line_once(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, split_bytes: int, block_bytes: int
) -> None:
    """The bytes, and the sizes of splits and of reads, are arbitrary; a line that spans splits belongs to one."""
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(content)

    assert read(path, split_bytes=split_bytes, block_bytes=block_bytes) == reference_lines(
        content.decode("utf-8", "replace")
    )


CHARSETS = "utf-16 utf-16-le utf-32 utf-8-sig latin-1 shift_jis gb18030 cp037 ascii utf-7 iso2022_jp hz"


@pytest.mark.parametrize("charset", CHARSETS.split())
@given(content=CONTENTS, split_bytes=st.integers(1, 40), block_bytes=st.integers(1, 40))
def test_other_charsets(
    tmp_path_factory: pytest.TempPathFactory, charset: str, content: bytes, split_bytes: int, block_bytes: int
) -> None:
    """Valid text in each of them, also those in which a line end is not one byte."""
    # "~" and ESC begin the escapes of the stateful ones: alone they are no text in them.
    text = content.translate(None, b"~\x1b").decode("utf-8", "ignore").encode(charset, "ignore").decode(charset)
    assume(is_text(text.encode(charset)))
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
        lines_of(reader_of(split, block_bytes=16, max_line_bytes=100))
    assert len(lines_of(reader_of(split, block_bytes=16, max_line_bytes=500))) == 2


def test_lines_come_in_chunks_of_about_the_same_size(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_bytes(b"x\n" * 5001)
    reader = alone(text_lines(FileSet((str(path),))))

    sizes = []
    while (chunk := reader.poll_chunk()) is not None:
        assert isinstance(chunk, Chunk)
        sizes.append(len(chunk))

    assert sizes == [1667, 1667, 1667]


def test_the_constructor_looks_at_nothing() -> None:
    """The files are where the cluster runs."""
    source = text_lines(FileSet(("/nowhere/at all",), "no such charset"))

    assert source.is_bounded


def test_a_file_that_is_gone_by_then_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.txt"
    reader = reader_of(FileSplit(str(missing), 0, 5))

    with pytest.raises(FlowletError, match=f"cannot read {missing}: No such file or directory") as caught:
        reader.poll_chunk()

    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_closing_early_closes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x\n" * 5000)
    before = set(os.listdir("/proc/self/fd"))
    harness = Harness(SourceOperator(text_lines(FileSet((str(path),)))))
    assert harness.operator.emit_next()
    assert set(os.listdir("/proc/self/fd")) != before

    harness.operator.close()

    assert set(os.listdir("/proc/self/fd")) == before


def test_the_progress_is_what_was_read_of_what_may_be_expected(tmp_path: Path) -> None:
    """Blocks count, and a fair share of the files that no reader has yet; the progress is None while there is nothing
    to read.
    """
    for name in "ab":
        (tmp_path / name).write_bytes(b"1234567\n" * 2)
    reader = TextLineReader("UTF-8", 2, block_bytes=8)
    progress = [reader.progress]
    reader.start(lambda: None)

    reader.add_splits([FileSplit(str(tmp_path / "a"), 0, 16)], waiting_bytes=32)
    progress.append(reader.progress)
    reader.poll_chunk()
    progress.append(reader.progress)
    reader.poll_chunk()
    progress.append(reader.progress)
    reader.add_splits([FileSplit(str(tmp_path / "b"), 0, 16)], waiting_bytes=0)
    progress.append(reader.progress)
    reader.no_more_splits()
    lines_of(reader)

    assert [*progress, reader.progress] == [None, 0.0, 0.25, 0.5, 0.5, 1.0]


def test_a_compressed_file_counts_its_bytes_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"line\n" * 100_000))
    reader = alone(text_lines(FileSet((str(path),))))

    progress = [reader.progress or 0.0 for _ in range(60) if reader.poll_chunk()]

    assert progress == sorted(progress)
    assert reader.progress == 1.0
    assert reader.poll_chunk() is None


class TestWaiting:
    def test_a_reader_without_a_split_has_nothing_until_one_comes(self, tmp_path: Path) -> None:
        """A reader without a split asks once, and its future tells when another poll is worth it."""
        (tmp_path / "a").write_text("one")
        asked: list[int] = []
        reader = TextLineReader("UTF-8")
        reader.start(lambda: asked.append(1))

        assert reader.poll_chunk() == Chunk([])
        assert reader.poll_chunk() == Chunk([])
        future = reader.available_future()
        assert (asked, future.is_done) == ([1], False)
        reader.add_splits([FileSplit(str(tmp_path / "a"), 0, 3)], 0)

        assert future.is_done
        assert reader.poll_chunk() == Chunk(["one"])
        assert asked == [1, 1], "little is left, so it asks before it has nothing to do"
        assert reader.poll_chunk() == Chunk([])
        future = reader.available_future()
        assert not future.is_done
        reader.no_more_splits()
        assert future.is_done
        assert reader.poll_chunk() is None
        assert reader.available_future().is_done

    def test_a_large_file_is_nearly_read_when_the_reader_asks_for_the_next(self, tmp_path: Path) -> None:
        size = 2 * EARLY_BYTES
        (tmp_path / "a").write_bytes(b"1234567\n" * (size // 8))
        asked: list[float] = []
        reader = TextLineReader("UTF-8")
        reader.start(lambda: asked.append(reader.progress or 0.0))

        reader.add_splits([FileSplit(str(tmp_path / "a"), 0, size)], 0)
        while (chunk := reader.poll_chunk()) is not None and len(chunk):
            pass

        assert asked == [0.0, 0.5]

    def test_a_split_that_has_ended_is_open_no_more(self, tmp_path: Path) -> None:
        """The watermark must not wait for a split that was read, even while the reader waits for the next one."""
        (tmp_path / "a").write_text("one")
        reader = TextLineReader("UTF-8")
        reader.start(lambda: None)
        reader.add_splits([FileSplit(str(tmp_path / "a"), 0, 3)], 0)

        reader.poll_chunk()
        during = set(reader.open_splits or ())
        reader.poll_chunk()

        assert [during, set(reader.open_splits or ())] == [{f"{tmp_path / 'a'}:0"}, set()]


CONTENT = b"".join(b"line %d\r\n" % number for number in range(50_000)) + "é".encode()


def zstd(content: bytes) -> bytes:
    compressed: bytes = pyarrow.compress(content, codec="zstd", asbytes=True)
    return compressed


Compress = Callable[[bytes], bytes]
COMPRESSED: dict[str, Compress] = {
    ".gz": gzip.compress,
    ".GZIP": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
    ".deflate": zlib.compress,
}


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_compressed_files_are_read_whole_by_the_end_of_their_names(suffix: str, tmp_path: Path) -> None:
    """The blocks have any sizes, and several compressed streams may follow each other."""
    path = tmp_path / f"a{suffix}"
    path.write_bytes(COMPRESSED[suffix](CONTENT[:100_000]) + COMPRESSED[suffix](CONTENT[100_000:]))

    for block_bytes in (1000, 128 << 10):
        assert read(path, split_bytes=64, block_bytes=block_bytes) == reference_lines(CONTENT.decode())


def test_a_compressed_file_may_be_in_a_charset_without_plain_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress("é\nü\n".encode("utf-16")))

    assert read(path, "utf-16", split_bytes=3, block_bytes=5) == ["é", "ü"]


ZEROS = "zeros stand behind its first stream"  # in gzip they are padding
IS_CUT, IS_DAMAGED = "it ends in the middle of its", "its .* data are damaged"
DAMAGES: dict[str, tuple[Callable[[Compress], bytes], str]] = {
    "it is cut short": (lambda compress: compress(CONTENT)[:-1], f"({IS_CUT}|its zstd data are damaged: Truncated)"),
    "it is a plain text": (lambda _: b"a plain text\n" * 100, f"{IS_DAMAGED}: .*; is its name right?"),
    "garbage stands behind its first stream": (
        lambda compress: compress(b"1\n") + b"garbage that no stream begins with" + compress(b"2\n"),
        IS_DAMAGED,
    ),
    ZEROS: (lambda compress: compress(b"1\n") + b"\0\0\0" + compress(b"2\n"), IS_DAMAGED),
} | {
    f"{place} of its second stream are left": (
        lambda compress, length=length: compress(b"1\n") + compress(b"2\n")[:length],
        f"({IS_CUT}|{IS_DAMAGED})",
    )
    for place, length in (("1 byte", 1), ("2 bytes", 2), ("5 bytes", 5), ("all bytes but one", -1))
}


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [(suffix, damage) for suffix in COMPRESSED for damage in DAMAGES if damage != ZEROS or "GZ" not in suffix.upper()],
)
def test_a_damaged_compressed_file_is_named(suffix: str, damage: str, tmp_path: Path) -> None:
    """The records behind the damage would otherwise be missing in silence; those in front of it may have gone on."""
    path = tmp_path / f"a{suffix}"
    content, message = DAMAGES[damage]
    path.write_bytes(content(COMPRESSED[suffix]))

    with pytest.raises(FlowletError, match=f"cannot read {path}: {message}"):
        lines_of_all(path)


def test_damage_inside_a_compressed_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    data = bytearray(gzip.compress(CONTENT))
    data[5_000:5_100] = bytes(100)
    path.write_bytes(data)

    with pytest.raises(FlowletError, match=f"cannot read {path}: its gzip data are damaged"):
        lines_of_all(path)


@pytest.mark.parametrize("num_zeros", [4, 512, 200_000])
def test_padding_between_the_streams_of_an_xz_file_is_skipped(num_zeros: int, tmp_path: Path) -> None:
    """The format of xz allows padding with zeros, a multiple of four bytes, between streams and at the end."""
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(b"1\n") + bytes(num_zeros) + lzma.compress(b"2\n") + bytes(num_zeros))

    assert lines_of_all(path) == ["1", "2"]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_compressed_content_is_found_by_its_first_bytes_whatever_the_name(suffix: str, tmp_path: Path) -> None:
    """Compressed content never becomes lines; a file that was cut because of its name is still read whole, once."""
    path = tmp_path / "log.1"
    path.write_bytes(COMPRESSED[suffix](CONTENT))
    size = path.stat().st_size

    assert read(path, split_bytes=64, block_bytes=128 << 10) == reference_lines(CONTENT.decode())
    assert lines_of(reader_of(FileSplit(str(path), 64, size))) == []
    assert lines_of(reader_of(FileSplit(str(path), 0, 64), FileSplit(str(path), 64, size))) == reference_lines(
        CONTENT.decode()
    )


def test_a_compressed_file_of_no_bytes_is_an_error(tmp_path: Path) -> None:
    """An empty file with the name of a compressed one was cut or never finished; an empty text has no lines."""
    for name in ("a.gz", "b.txt"):
        (tmp_path / name).touch()

    assert lines_of_all(tmp_path / "b.txt") == []
    with pytest.raises(FlowletError, match=r"a\.gz: it is empty, which no gzip data are; was it written to its end"):
        lines_of_all(tmp_path)


@pytest.mark.parametrize(("name", "charset"), [("a", "UTF-8"), ("a", "utf-16"), ("a.gz", "UTF-8")])
def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(name: str, charset: str, tmp_path: Path) -> None:
    """Cut behind a line, or between two streams, it looks like one that is complete."""
    path = tmp_path / name
    encode = gzip.compress if name.endswith(".gz") else bytes
    first, second = encode("1\n".encode(charset)), encode("2\n".encode(charset))
    path.write_bytes(first + second)
    splits = all_splits([str(path)], charset)
    path.write_bytes(first)

    with pytest.raises(FlowletError, match=f"cannot read {path}: it has become shorter while it was read"):
        lines_of(reader_of(*splits, charset=charset))


def test_files_without_a_size_are_read_to_their_end() -> None:
    """The kernel's files have content, although they say that they have none; others say more than they have."""
    source = text_lines(FileSet(("/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled"), split_bytes=16))

    lines = lines_of(alone(source))

    assert f"Pid:\t{os.getpid()}" in lines
    assert lines[-1] == Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().rstrip()


def test_a_source_operator_tells_the_progress_of_its_reader_also_after_its_end(tmp_path: Path) -> None:
    """The progress of a reader that is not open yet is unknown; that of a closed one stays as it was."""
    (tmp_path / "a").write_bytes(b"one\n")
    operator = SourceOperator(text_lines(FileSet((str(tmp_path / "a"),))))
    assert operator.progress is None
    Harness(operator, pickled=False)

    while operator.emit_next():
        pass
    operator.close()

    assert operator.progress == 1.0


CHARSET_OF = {"a.txt": "UTF-8", "a.gz": "UTF-8", "a.bin": "UTF-16-LE"}


@given(
    content=CONTENTS,
    name=st.sampled_from(sorted(CHARSET_OF)),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
    stops=st.lists(st.integers(0, 6), max_size=3),
    chunk_lines=st.integers(1, 3),
)
def test_a_reader_goes_on_with_the_next_line_wherever_it_was_stopped(
    tmp_path_factory: pytest.TempPathFactory,
    content: bytes,
    name: str,
    sizes: tuple[int, int, int],
    stops: list[int],
    chunk_lines: int,
) -> None:
    """The reader may be stopped several times, with blocks of other sizes afterwards, and in files that are read as a
    whole.
    """
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    split_bytes, *block_sizes = sizes
    splits, charset = all_splits([str(path)], CHARSET_OF[name], split_bytes), CHARSET_OF[name]
    found: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_line_source, "MAX_CHUNK_LINES", chunk_lines)
        patch.setattr(text_line_source, "_DROPPED_BYTES", block_sizes[0])
        expected = lines_of(reader_of(*splits, charset=charset))
        reader = reader_of(*splits, charset=charset, block_bytes=block_sizes[0])
        for number, num_chunks in enumerate(stops):
            for _ in range(num_chunks):
                found += getattr(reader.poll_chunk(), "values", [])
            position = pickle.loads(pickle.dumps(reader.snapshot_position()))
            reader.close()
            reader = TextLineReader(charset, block_bytes=block_sizes[number % 2])
            reader.restore_position(position)
            reader.start(lambda: None)
            reader.no_more_splits()
        found += lines_of(reader)

    assert found == expected


def test_a_restored_reader_has_its_splits_and_asks_for_more(tmp_path: Path) -> None:
    splits = [FileSplit(str(tmp_path / name), 0, 4) for name in "abc"]
    for split in splits:
        Path(split.path).write_text("1\n2\n")
    reader, asked = TextLineReader("UTF-8"), []
    reader.restore_position(TextPosition(tuple(splits[:2]), SplitPosition(2, 0)))

    reader.start(lambda: asked.append("more"))
    reader.add_splits(splits[2:], 0)
    reader.no_more_splits()

    assert asked == ["more"]
    assert lines_of(reader) == ["2", "1", "2", "1", "2"]
    assert reader.snapshot_position() == TextPosition((), None)


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_a_file_that_became_shorter_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"1\n") if name.endswith(".gz") else b"1\n")
    reader = TextLineReader("UTF-8")
    reader.restore_position(TextPosition((FileSplit(str(path), 0, 9),), SplitPosition(8, 0)))
    reader.start(lambda: None)

    with pytest.raises(FlowletError, match=f"cannot go on in {path}: it has become shorter since the checkpoint"):
        reader.poll_chunk()
