"""Promises of the enumerator of files: the files that it lists and refuses, and the readers that get their parts."""

import os
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.connectors.files import split as file_enumerator
from flowlet.connectors.files.split import FileSplitEnumerator
from flowlet.errors import ConfigError, FlowletError, StateRestoreError
from flowlet.splits.split_kinds import FileSet, FileSplit
from tests.flowlet.splits.all_splits import all_splits


def write(folder: Path, **sizes: int) -> list[str]:
    """Files of so many bytes; their paths."""
    for name, size in sizes.items():
        (folder / name).write_bytes(b"x" * size)
    return [str(folder / name) for name in sizes]


def names(splits: list[FileSplit]) -> list[str]:
    return [Path(split.path).name for split in splits]


def test_empty_files_have_no_split(tmp_path: Path) -> None:
    assert names(all_splits(write(tmp_path, a=0, b=1, c=0))) == ["b"]
    assert all_splits(write(tmp_path, d=0)) == []
    assert all_splits([]) == []


def test_folders_are_listed_in_order_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/2", "a/1", ".hidden", "_SUCCESS", ".git/config", "a/_tmp/x", "c.d/e"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)

    splits = all_splits([str(tmp_path), str(tmp_path / "_SUCCESS")])

    assert [os.path.relpath(split.path, tmp_path) for split in splits] == ["b.txt", "a/1", "a/2", "c.d/e", "_SUCCESS"]


def test_links_to_folders_are_followed_and_a_circle_ends(tmp_path: Path) -> None:
    """A link back to a folder in which it lies adds nothing; one to another folder adds its files, under the name of
    the link.
    """
    top, other = tmp_path / "top", tmp_path / "other"
    for folder in (top / "a", other / "b"):
        folder.mkdir(parents=True)
        (folder / "x").write_text("x")
    (top / "linked").symlink_to(other)
    (top / "a" / "up").symlink_to(top)
    (other / "b" / "self").symlink_to(".")
    (other / "b" / "across").symlink_to(top / "a")
    (tmp_path / "entry").symlink_to(top)

    assert [os.path.relpath(split.path, tmp_path) for split in all_splits([str(tmp_path / "entry")])] == [
        "entry/a/x",
        "entry/linked/b/x",
        "entry/linked/b/across/x",
    ]


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "lost").symlink_to(tmp_path / "missing")

    with pytest.raises(FlowletError, match=r"cannot read .*/lost: No such file"):
        all_splits([str(tmp_path)])


@pytest.mark.parametrize("name", ["a.zip", "a"])
def test_an_archive_is_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("lines", "1\n2\n")

    with pytest.raises(FlowletError, match="it is a zip archive, which a file source does not read; unpack it"):
        all_splits([str(tmp_path)])


def test_a_file_is_one_split_whatever_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(40 << 20)

    assert all_splits([str(path)], num_readers=4) == [FileSplit(str(path), 0, 40 << 20)]


def test_a_path_that_is_given_twice_is_read_twice(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a=3)

    assert names(all_splits([path, path])) == ["a", "a"]


def test_ranges_cover_each_file_in_equal_steps_where_it_can_be_cut(tmp_path: Path) -> None:
    """A compressed file is read whole, and so is one in a charset in which a line end is found only by reading all
    before it.
    """
    path, compressed = write(tmp_path, **{"a": 25, "b.gz": 25})

    splits = all_splits([path], split_bytes=10)

    assert [(split.start, split.end, split.size_bytes) for split in splits] == [(0, 10, 10), (10, 20, 10), (20, 25, 5)]
    assert [split.split_id for split in splits] == [f"{path}:0", f"{path}:10", f"{path}:20"]
    assert len(all_splits([path], "utf-16", 10)) == 1
    assert len(all_splits([compressed], split_bytes=10)) == 1


def test_several_readers_get_the_largest_files_first_and_one_gets_them_in_order(tmp_path: Path) -> None:
    paths = write(tmp_path, a=1, b=5, c=3, d=3)

    assert names(all_splits(paths, num_readers=2)) == ["b", "c", "d", "a"]
    assert names(all_splits(paths, num_readers=1)) == ["a", "b", "c", "d"]


def test_small_files_travel_together_but_no_more_than_half_a_share(tmp_path: Path) -> None:
    """The last reader to ask would otherwise find no file, or every file would cost a question."""
    enumerator = FileSplitEnumerator(FileSet(tuple(write(tmp_path, **{f"f{number:03}": 10 for number in range(100)}))))
    enumerator.discover(num_readers=2)

    sizes, waiting = [], [enumerator.waiting_bytes]
    while splits := enumerator.next_splits(0):
        sizes.append(len(splits))
        waiting.append(enumerator.waiting_bytes)

    assert sizes == [25, 18, 14, 10, 8, 6, 4, 3, 3, 2, 1, 1, 1, 1, 1, 1, 1]
    assert waiting == [1000 - 10 * sum(sizes[:count]) for count in range(len(sizes) + 1)]


def test_an_answer_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write(tmp_path, **{f"f{number:03}": 10 for number in range(50)})
    for limit in ("MAX_ANSWER_SPLITS", "MAX_ANSWER_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(file_enumerator, limit, 7 if limit == "MAX_ANSWER_SPLITS" else 79)
            enumerator = FileSplitEnumerator(FileSet(tuple(paths)))
            enumerator.discover(num_readers=1)

            assert len(enumerator.next_splits(0)) == 7


@given(st.lists(st.integers(0, 100), max_size=20), st.integers(1, 5), st.none() | st.integers(1, 40))
def test_every_byte_is_handed_out_once(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], num_readers: int, split_bytes: int | None
) -> None:
    folder = tmp_path_factory.mktemp("files")
    paths = write(folder, **{f"f{index:02}": size for index, size in enumerate(sizes)})

    splits = all_splits(paths, split_bytes=split_bytes, num_readers=num_readers)

    found = sorted((split.path, offset) for split in splits for offset in range(split.start, split.end))
    assert found == [(path, offset) for path, size in zip(paths, sizes, strict=True) for offset in range(size)]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.txt"
    with pytest.raises(FlowletError, match=f"cannot read {missing}: No such file or directory") as caught:
        all_splits([str(missing)])
    assert isinstance(caught.value.__cause__, FileNotFoundError)

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FlowletError, match=f"cannot read {pipe}: it is neither a file nor a folder"):
        all_splits([str(pipe)])

    for charset in ("no such charset", "hex"):
        with pytest.raises(ConfigError, match=f"unknown charset '{charset}'"):
            all_splits(write(tmp_path, a=1), charset)


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)

    with pytest.raises(FlowletError, match=f"cannot list {tmp_path}: Permission denied"):
        all_splits([str(tmp_path)])


def test_a_name_that_is_no_text_is_named_as_well_as_it_can_be(tmp_path: Path) -> None:
    """A file name that is not UTF-8 would not reach the reader, so the error shows its bytes."""
    with open(os.fsencode(tmp_path) + b"/caf\xe9", "w") as file:
        file.write("x")

    with pytest.raises(FlowletError, match=r"cannot read .*/caf\\xe9: its name is not UTF-8, .*; rename it"):
        all_splits([str(tmp_path)])


def test_a_restored_enumerator_hands_out_the_rest_in_the_same_answers(tmp_path: Path) -> None:
    """Files that have come or gone since make no difference."""
    files = FileSet(tuple(write(tmp_path, a=25, b=7)), split_bytes=10)
    enumerator, restored = FileSplitEnumerator(files), FileSplitEnumerator(FileSet(("/not/there",), split_bytes=10))
    enumerator.discover(num_readers=2)
    enumerator.next_splits(0)

    restored.restore(enumerator.snapshot(), num_readers=2)

    assert restored.waiting_bytes == enumerator.waiting_bytes == 22
    while splits := enumerator.next_splits(0):
        assert restored.next_splits(1) == splits
    assert restored.next_splits(0) == []


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (b"", "cannot be read"),
        (msgspec.msgpack.encode((1, [("a", "b", 1)])), "cannot be read"),
        (msgspec.msgpack.encode((2, [])), "have version 2, this flowlet reads version 1"),
    ],
)
def test_splits_of_a_checkpoint_that_cannot_be_read_are_refused(state: bytes, message: str) -> None:
    with pytest.raises(StateRestoreError, match=f"the splits of a file source in a checkpoint {message}"):
        FileSplitEnumerator(FileSet(())).restore(state, 1)
