"""Files are cut into parts by content, folders become archives that depend on their content alone."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from flowlet.common.options.python_options import ArchivePath, CachedPath, DependencySettings
from flowlet.errors import JobSubmissionError
from flowlet.messages import program_bundle as shipped_files
from flowlet.messages.program_bundle import PART_BYTES, ModuleSource, check_shipped_files, unpack_modules
from flowlet.shipping import bundle_maker as part_sources
from flowlet.shipping.bundle_maker import pack


def test_a_file_becomes_parts_that_make_it_again(tmp_path: Path) -> None:
    content = os.urandom(PART_BYTES) + b"rest"
    (tmp_path / "model.bin").write_bytes(content)

    with pack(DependencySettings(cached=(CachedPath("model", str(tmp_path / "model.bin")),))) as packed:
        file = packed.bundle.files.cached[0].file
        parts = [packed.part(digest) for digest in file.parts]

    assert (file.name, file.num_bytes, file.is_folder) == ("model.bin", len(content), False)
    assert b"".join(parts) == content
    assert file.parts == [hashlib.sha256(part).digest() for part in parts]
    check_shipped_files(packed.bundle.files)


def test_a_folder_has_the_same_digests_whenever_it_is_packed_and_leaves_compiled_files_behind(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / name / "package"
        (folder / "__pycache__").mkdir(parents=True)
        for module in ("a.py", "b.py") if name == "one" else ("b.py", "a.py"):
            (folder / module).write_text(f"# {module}")
            os.utime(folder / module, (1, len(name) + folder.stat().st_ino))
        (folder / "__pycache__" / "a.pyc").write_text(name)
    settings = [DependencySettings(python_files=(str(tmp_path / name / "package"),)) for name in ("one", "two")]

    with pack(settings[0]) as one, pack(settings[1]) as two:
        assert one.bundle.files == two.bundle.files
        (digest,) = one.bundle.files.parts()
        (tmp_path / "archive").write_bytes(one.part(digest))
    assert one.bundle.files.python_files[0].is_folder
    assert zipfile.ZipFile(tmp_path / "archive").namelist() == ["a.py", "b.py"]


def test_the_modules_beside_a_program_are_one_file_whose_digest_depends_on_them_alone() -> None:
    modules = {
        "a": ModuleSource("/home/ann/a.py", b"A = 1"),
        "b": ModuleSource("/home/ann/b/__init__.py", b"", is_package=True),
    }

    turned = dict(reversed(modules.items()))
    with (
        pack(DependencySettings(), (modules, {})) as one,
        pack(DependencySettings(), (turned, {})) as two,
    ):
        assert one.bundle.files == two.bundle.files
        assert one.bundle.files.modules is not None
        content = b"".join(map(one.part, one.bundle.files.modules.parts))
    check_shipped_files(one.bundle.files)
    assert unpack_modules(content) == modules


def test_links_to_files_are_followed_and_those_to_folders_above_are_not(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text("x = 1")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link.py").symlink_to(tmp_path / "elsewhere.py")
    (folder / "up").symlink_to(tmp_path)

    with pack(DependencySettings(python_files=(str(folder),))) as packed:
        (digest,) = packed.bundle.files.parts()
        (tmp_path / "archive").write_bytes(packed.part(digest))
    assert zipfile.ZipFile(tmp_path / "archive").read("link.py") == b"x = 1"
    assert zipfile.ZipFile(tmp_path / "archive").namelist() == ["link.py"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (DependencySettings(python_files=("gone.py",)), r"add_python_file\(\): there is no file or folder 'gone.py'"),
        (DependencySettings(requirements="gone.txt"), r"set_python_requirements\(\): there is no file 'gone.txt'"),
        (
            DependencySettings(requirements="r.txt", packages="gone"),
            r"'gone' is no folder of packages, as 'pip download -d' makes it",
        ),
        (
            DependencySettings(archives=(ArchivePath("r.txt", "r"),)),
            r"add_python_archive\(\): 'r.txt' is no folder, nor an archive",
        ),
        (
            DependencySettings(archives=(ArchivePath("a.zip", "../a"),)),
            r"add_python_archive\(\): '../a' is no folder below the working",
        ),
        (DependencySettings(archives=(ArchivePath("a.zip", "/a"),)), r"'/a' is no folder below the working directory"),
        (
            DependencySettings(cached=(CachedPath("a", "gone"),)),
            r"register_cached_file\(\): there is no file or folder 'gone'",
        ),
    ],
)
def test_what_cannot_be_shipped_is_named_with_its_method(
    settings: DependencySettings, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.txt").write_text("")

    with pytest.raises(JobSubmissionError, match=words):
        pack(settings).__enter__()


def test_files_that_are_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_sources, "MAX_JOB_FILE_BYTES", 1000)
    (tmp_path / "a").write_bytes(bytes(600))
    (tmp_path / "b").write_bytes(b"b" * 1001)

    reason = "the files of the job have 1200 bytes, the limit is 1000: put large data where"
    with pytest.raises(JobSubmissionError, match=reason):
        pack(DependencySettings(python_files=(str(tmp_path / "a"), str(tmp_path / "a")))).__enter__()
    with pytest.raises(JobSubmissionError, match="'b' has more than 1000 bytes"):
        pack(DependencySettings(python_files=(str(tmp_path / "b"),))).__enter__()


def test_a_folder_that_is_too_large_is_not_packed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive ends at the limit; packing is not even begun for a folder that no TaskManager unpacks."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a").write_bytes(os.urandom(2 * 1024 * 1024))
    settings = DependencySettings(python_files=(str(folder),))
    monkeypatch.setattr(part_sources, "MAX_JOB_FILE_BYTES", 1000)
    monkeypatch.setattr(part_sources.PackedBundle, "_hashed", None)  # comes when the archive is complete

    with pytest.raises(JobSubmissionError, match="'data' has more than 1000 bytes"):
        pack(settings).__enter__()
    os.truncate(folder / "a", 8 * 1024**3 + 1)  # a hole, which would be read for a minute
    reason = "has more than 8589934592 bytes, which no TaskManager unpacks: put large data where"
    with pytest.raises(JobSubmissionError, match=reason):
        pack(settings).__enter__()


def test_a_file_that_changes_on_its_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    with pack(DependencySettings(python_files=(str(tmp_path / "a.py"),))) as packed:
        (digest,) = packed.bundle.files.parts()
        (tmp_path / "a.py").write_text("x = 2")

        with pytest.raises(JobSubmissionError, match=r"a.py has changed while it was shipped"):
            packed.part(digest)


@pytest.mark.parametrize("target", ["a", "a/b", "a.zip", "...", "ä"])
def test_targets_below_the_working_directory(target: str) -> None:
    assert shipped_files.is_target(target)


@pytest.mark.parametrize(
    "target", ["", ".", "..", "a/..", "../a", "/a", "a//b", "a/", "a\\b", "a\nb", "./a", "x" * 256]
)
def test_targets_elsewhere(target: str) -> None:
    assert not shipped_files.is_target(target)
