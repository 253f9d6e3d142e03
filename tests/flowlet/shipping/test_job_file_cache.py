"""The files of jobs as their tasks find them."""

import hashlib
import io
import shutil
import threading
import zipfile
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from flowlet.errors import FlowletError
from flowlet.messages.program_bundle import CachedFile, ShippedArchive, ShippedFile, ShippedFiles
from flowlet.shipping.archives import UnpackError
from flowlet.shipping.job_file_cache import FileTransferError, JobFileCache, JobPaths


class Sender:
    """A cache, and the parts of a job in memory; counts its fetches."""

    def __init__(self, cache: JobFileCache) -> None:
        self.cache = cache
        self.parts: dict[bytes, bytes] = {}
        self.fetched: list[bytes] = []

    def file(self, name: str, content: bytes, *, is_folder: bool = False) -> ShippedFile:
        digest = hashlib.sha256(content).digest()
        self.parts[digest] = content
        return ShippedFile(name, len(content), [digest], is_folder)

    def fetch(self, digest: bytes) -> bytes:
        self.fetched.append(digest)
        return self.parts[digest]

    def in_use(self, files: ShippedFiles, job: str = "job") -> AbstractContextManager[JobPaths]:
        return self.cache.in_use(files, job, self.fetch, lambda: None)


class CancelledError(Exception):
    pass


@pytest.fixture
def sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sender:
    """Make a cache whose files go with the test's folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Sender(JobFileCache())


def archive_of(*files: tuple[str, str]) -> bytes:
    """Return an archive of files, each a name and its content."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in files:
            archive.writestr(name, content)
    return made.getvalue()


def test_modules_lie_in_folders_of_the_import_path_in_their_order(sender: Sender, tmp_path: Path) -> None:
    folder = archive_of(("package/__init__.py", ""))
    files = ShippedFiles(
        python_files=[
            sender.file("helper.py", b"x = 1"),
            sender.file("lib", folder, is_folder=True),
            sender.file("lib.whl", folder),
        ]
    )

    with sender.in_use(files) as paths:
        helper, lib, wheel = paths.import_path
        assert (helper / "helper.py").read_text() == "x = 1"
        assert (lib / "package" / "__init__.py").exists()
        assert wheel == lib
        assert (paths.packages, paths.working_directory, paths.cached) == (None, None, {})
    assert len(sender.fetched) == 2, "the same content is fetched once"


def test_the_next_task_finds_what_is_there_and_a_changed_file_has_another_folder(sender: Sender) -> None:

    with sender.in_use(ShippedFiles([sender.file("helper.py", b"x = 1")])) as paths:
        first = paths.import_path
    with sender.in_use(ShippedFiles([sender.file("helper.py", b"x = 1")]), "other") as paths:
        assert paths.import_path == first
    with sender.in_use(ShippedFiles([sender.file("helper.py", b"x = 2")]), "other") as paths:
        assert paths.import_path != first

    assert len(sender.fetched) == 2


def test_archives_lie_in_the_working_directory_which_belongs_to_its_job_and_goes_with_its_last_task(
    sender: Sender, tmp_path: Path
) -> None:
    data = sender.file("data.zip", archive_of(("a.txt", "one")))
    files = ShippedFiles(archives=[ShippedArchive(data, "data.zip"), ShippedArchive(data, "deep/er")])

    with sender.in_use(files) as one, sender.in_use(files, "other") as other:
        with sender.in_use(files) as again:
            assert again.working_directory == one.working_directory != other.working_directory
        assert one.working_directory is not None
        assert (one.working_directory / "data.zip" / "a.txt").read_text() == "one"
        assert (one.working_directory / "deep" / "er" / "a.txt").read_text() == "one"
        assert (one.working_directory / "deep" / "er" / "a.txt").stat().st_mode & 0o777 == 0o600
    assert not one.working_directory.exists()


def test_two_archives_for_one_folder_are_refused(sender: Sender, tmp_path: Path) -> None:
    data = sender.file("data.zip", archive_of(("a.txt", "one")))

    with (
        pytest.raises(FlowletError, match="two archives of the job have the folder 'data'"),
        sender.in_use(ShippedFiles(archives=[ShippedArchive(data, "data"), ShippedArchive(data, "data")])),
    ):
        pass


def test_cached_files_are_found_by_name(sender: Sender, tmp_path: Path) -> None:
    folder = sender.file("folder", archive_of(("a.txt", "one")), is_folder=True)
    files = ShippedFiles(
        cached=[
            CachedFile("model", sender.file("model.bin", b"m")),
            CachedFile("tool", sender.file("tool", b"t"), True),
        ]
    )

    with sender.in_use(files) as paths:
        assert paths.cached["model"].read_bytes() == b"m"
        assert paths.cached["model"].name == "model.bin"
        assert paths.cached["tool"].stat().st_mode & 0o777 == 0o500
        assert paths.cached["model"].stat().st_mode & 0o777 == 0o400
    with sender.in_use(ShippedFiles(cached=[CachedFile("all", folder)])) as paths:
        assert (paths.cached["all"] / "a.txt").read_text() == "one"
        assert (paths.cached["all"] / "a.txt").stat().st_mode & 0o777 == 0o400


def test_a_part_that_was_changed_on_its_way_is_refused_and_fetched_again_by_the_next_task(sender: Sender) -> None:
    file = sender.file("helper.py", b"x = 1")
    sender.parts[file.parts[0]] = b"x = 2"

    reason = "file 'helper.py' of the job did not arrive as it was sent: part 0 differs"
    with pytest.raises(FileTransferError, match=reason):
        sender.in_use(ShippedFiles([file])).__enter__()

    sender.parts[file.parts[0]] = b"x = 1"
    with sender.in_use(ShippedFiles([file])) as paths:
        assert (paths.import_path[0] / "helper.py").read_text() == "x = 1"


def test_a_hostile_archive_leaves_nothing_and_fails_each_task(sender: Sender, tmp_path: Path) -> None:
    files = ShippedFiles([sender.file("lib.zip", archive_of(("../../out.py", "")))])

    for _ in range(2):
        with pytest.raises(UnpackError, match="leads out of the folder"):
            sender.in_use(files).__enter__()
    assert not list(tmp_path.rglob("out.py"))


def test_tasks_that_need_the_same_wait_for_one_that_fetches_it_and_a_cancelled_one_does_not(
    sender: Sender,
) -> None:
    files = ShippedFiles([sender.file("helper.py", b"x = 1")])
    fetching, go_on = threading.Event(), threading.Event()

    def slow(digest: bytes) -> bytes:
        fetching.set()
        go_on.wait(30)
        return sender.fetch(digest)

    def first() -> None:
        with sender.cache.in_use(files, "job", slow, lambda: None):
            pass

    def cancelled() -> None:
        raise CancelledError

    thread = threading.Thread(target=first)
    thread.start()
    fetching.wait(30)
    with pytest.raises(CancelledError):
        sender.cache.in_use(files, "job", sender.fetch, cancelled).__enter__()
    go_on.set()
    with sender.in_use(files):
        pass
    thread.join(30)

    assert len(sender.fetched) == 1


def test_what_is_made_while_the_same_is_removed_is_another_folder(
    sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the job starts again while the last task of another part ends."""
    files = ShippedFiles(archives=[ShippedArchive(sender.file("data.zip", archive_of(("a.txt", "one"))), "data")])
    remove = shutil.rmtree
    with ExitStack() as later:
        entered: list[JobPaths] = []

        def enter_before(path: Path, **options: Any) -> None:
            if not entered:
                entered.append(JobPaths())
                entered[0] = later.enter_context(sender.in_use(files))
            remove(path, **options)

        monkeypatch.setattr(shutil, "rmtree", enter_before)
        with sender.in_use(files) as before:
            pass

        assert entered[0].working_directory is not None
        assert (entered[0].working_directory / "data" / "a.txt").read_text() == "one"
        assert before.working_directory is not None
        assert not before.working_directory.exists()


def test_nothing_stays_of_what_could_not_be_made(sender: Sender, tmp_path: Path) -> None:
    content = archive_of(("first.txt", "a" * 1000), ("../out.txt", ""))
    files = ShippedFiles([sender.file("lib.zip", content)])

    with pytest.raises(UnpackError):
        sender.in_use(files).__enter__()

    assert not [*tmp_path.rglob("first.txt"), *tmp_path.rglob("*.unfinished")]


def test_a_cancelled_task_unpacks_no_further(sender: Sender, tmp_path: Path) -> None:
    def cancelled() -> None:
        if any(tmp_path.rglob("first.txt")):
            raise CancelledError

    file = sender.file("lib.zip", archive_of(("first.txt", ""), ("second.txt", "")))

    for files in (ShippedFiles([file]), ShippedFiles(archives=[ShippedArchive(file, "data")])):
        with pytest.raises(CancelledError):
            sender.cache.in_use(files, "job", sender.fetch, cancelled).__enter__()


def test_everything_goes_when_the_cache_is_closed(sender: Sender, tmp_path: Path) -> None:
    with sender.in_use(ShippedFiles([sender.file("helper.py", b"x = 1")])):
        pass

    sender.cache.close()
    sender.cache.close()

    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def left_in(folder: Path) -> list[Path]:
    """Files and folders, but for the folder of the user, which stays."""
    return [path for path in folder.rglob("*") if not path.name.startswith("flowlet-")]


def test_files_that_are_asked_for_after_the_end_are_refused_and_leave_nothing(sender: Sender, tmp_path: Path) -> None:
    """A task may get as far as here while its TaskManager stops, and its files would not be removed."""
    files = ShippedFiles([sender.file("helper.py", b"x = 1")])
    sender.cache.close()

    reason = "the directory for files was removed: its process, or its cluster, is ending"
    with pytest.raises(FlowletError, match=reason):
        sender.in_use(files).__enter__()
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("is_folder", [False, True])
def test_files_that_are_being_made_at_the_end_leave_nothing(sender: Sender, tmp_path: Path, is_folder: bool) -> None:
    content = archive_of(("a.py", "x = 1")) if is_folder else b"x = 1"
    files = ShippedFiles([sender.file("helper", content, is_folder=is_folder)])

    def fetch(digest: bytes) -> bytes:
        sender.cache.close()
        return sender.parts[digest]

    with pytest.raises((FlowletError, OSError)), sender.cache.in_use(files, "job", fetch, lambda: None):
        pass
    assert left_in(tmp_path) == []
