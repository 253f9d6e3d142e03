"""Archives of jobs are unpacked into their folder and nowhere else."""

import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from flowlet.shipping.archives import UnpackError, unpack


def zipped(path: Path, entries: dict[str, bytes], mode: int = 0o644) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFREG | mode) << 16
            archive.writestr(info, content)
    return path


def tarred(path: Path, entries: dict[str, bytes], mode: int = 0o644) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in entries.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            archive.addfile(info, io.BytesIO(content))
    return path


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize("make", [zipped, tarred])
def test_files_come_with_their_folders_and_keep_the_right_to_be_executed(
    make: Callable[..., Path], tmp_path: Path
) -> None:
    entries = {"a.txt": b"one", "deep/er/b.txt": b"two"}

    unpack(make(tmp_path / "archive", entries, mode=0o4755), "archive", tmp_path / "folder")

    assert content_of(tmp_path / "folder") == entries
    assert stat.S_IMODE((tmp_path / "folder" / "a.txt").stat().st_mode) == 0o700


@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.parametrize("name", ["../out.txt", "/out.txt", "a/../../out.txt", "..\\out.txt"])
def test_an_entry_that_leads_out_is_refused(make: Callable[..., Path], name: str, tmp_path: Path) -> None:
    archive = make(tmp_path / "archive", {name: b"x"})

    with pytest.raises(UnpackError, match="leads out of the folder"):
        unpack(archive, "archive", tmp_path / "folder")

    assert sorted(os.listdir(tmp_path)) == ["archive", "folder"]
    assert content_of(tmp_path / "folder") == {}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_tar_archive_with_a_link_or_a_device_is_refused(kind: bytes, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "archive", "w") as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)

    with pytest.raises(UnpackError, match=r"'link' is (a link|something that is no file), which is not unpacked"):
        unpack(tmp_path / "archive", "archive", tmp_path / "folder")


def test_a_zip_archive_with_a_link_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")

    with pytest.raises(UnpackError, match="'link' is a link, which is not unpacked"):
        unpack(tmp_path / "archive", "archive", tmp_path / "folder")


@pytest.mark.parametrize("make", [zipped, tarred])
def test_archives_that_become_too_large_end_at_the_limit(make: Callable[..., Path], tmp_path: Path) -> None:
    archive = make(tmp_path / "archive", {"a": bytes(1000), "b": bytes(1000)})

    with pytest.raises(UnpackError, match="becomes more than 1500 bytes"):
        unpack(archive, "archive", tmp_path / "one", max_bytes=1500)
    with pytest.raises(UnpackError, match="has more than 1 entries"):
        unpack(archive, "archive", tmp_path / "two", max_files=1)


def test_a_zip_archive_that_lies_about_its_sizes_writes_no_more_than_the_limit(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "archive", {"a": bytes(100_000)})
    data = archive.read_bytes().replace((100_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    archive.write_bytes(data)

    with pytest.raises(UnpackError):
        unpack(archive, "archive", tmp_path / "folder", max_bytes=1000)
    assert sum(len(each) for each in content_of(tmp_path / "folder").values()) <= 1000


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", [("a", "a"), ("a", "a/b"), ("a/b", "a")])
def test_two_entries_for_one_path_are_refused(names: tuple[str, str], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        for name in names:
            archive.writestr(name, b"x")

    with pytest.raises(UnpackError, match="two entries for one path"):
        unpack(tmp_path / "archive", "archive", tmp_path / "folder")


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 broken"])
def test_what_is_no_archive_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(content)

    with pytest.raises(UnpackError, match=r"'data.zip'"):
        unpack(tmp_path / "archive", "data.zip", tmp_path / "folder")


def test_a_truncated_archive_is_an_error(tmp_path: Path) -> None:
    archive = tarred(tmp_path / "archive", {"a": os.urandom(50_000)})
    archive.write_bytes(archive.read_bytes()[:20_000])

    with pytest.raises(UnpackError, match="cannot be unpacked"):
        unpack(archive, "archive", tmp_path / "folder")


def test_an_archive_whose_compressed_bytes_are_broken_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "archive", "w:xz") as archive:
        content = b"".join(b"%d " % number for number in range(50_000))
        info = tarfile.TarInfo("a")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    data = (tmp_path / "archive").read_bytes()
    (tmp_path / "archive").write_bytes(data[: len(data) // 2] + bytes(len(data) // 2))

    with pytest.raises(UnpackError, match=r"'data\.tar\.xz' cannot be unpacked: Corrupt"):
        unpack(tmp_path / "archive", "data.tar.xz", tmp_path / "folder")
