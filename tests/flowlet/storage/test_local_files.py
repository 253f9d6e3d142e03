"""Files survive a loss of power, and each failure of a real file system gives a sentence with advice."""

import ctypes
import os
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowlet.errors import StorageError
from flowlet.messages.job_messages import StateHandle, SubtaskEntry
from flowlet.storage.checkpoint_storage import CheckpointStorage
from flowlet.storage.manifest import CheckpointManifest

# Numpy has threads, and we fork.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

JOB = "0123456789abcdef" * 2
LARGE = bytes(256) * 1024
SMALL_DISK = b"size=128k"
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_REC, _MS_PRIVATE, _MS_REMOUNT, _MS_RDONLY = 0x4000, 1 << 18, 32, 1
NOBODY = 65534
libc = ctypes.CDLL(None, use_errno=True)


def said_in_a_child(act: Callable[[], object]) -> str:
    """Return the message of the StorageError that ``act`` raises in a forked process, or the outcome without one."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = f"nothing failed: {act()!r}"
        except StorageError as error:
            said = str(error)
        except BaseException as error:  # noqa: BLE001 - the parent shows it
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read().decode()
    os.waitpid(pid, 0)
    return said


class CannotMountError(Exception):
    pass


def check(result: int) -> None:
    if result != 0:
        raise CannotMountError(os.strerror(ctypes.get_errno()))


def mount(path: Path, options: bytes, flags: int = 0) -> None:
    """A tmpfs that only this process sees, and that is gone with it."""
    check(libc.mount(b"flowlet-test", str(path).encode(), b"tmpfs", flags, options))


def use_mounts_of_our_own() -> None:
    user, group = os.geteuid(), os.getegid()
    check(libc.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if user else 0)))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    check(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))


def said_on_a_disk(act: Callable[[], object]) -> str:
    said = said_in_a_child(act)
    if said.startswith(("CannotMountError", "PermissionError")):
        pytest.skip(f"this user cannot mount a small disk: {said}")
    return said


def write(root: Path, name: str = "state", content: bytes = LARGE) -> object:
    return CheckpointStorage(str(root), JOB).write_state(1, name, content)


# ---------------------------------------------------------------- failures


def test_a_full_disk(tmp_path: Path) -> None:
    """The next checkpoint can succeed: the written parts of this one are removed."""

    def fill() -> object:
        use_mounts_of_our_own()
        mount(tmp_path, SMALL_DISK)
        try:
            return write(tmp_path)
        finally:
            assert os.listdir(tmp_path / JOB / "chk-1") == [], "the part that was written is removed"
            write(tmp_path, content=LARGE[: 64 * 1024])

    said = said_on_a_disk(fill)

    assert re.sub(r"\d+ are free", "N are free", said) == (
        f"checkpoint file {tmp_path}/{JOB}/chk-1/state cannot be written: the disk is full ({len(LARGE)} bytes are to "
        "be written, N are "
        "free); free space there, or set execution.checkpointing.dir to another directory"
    )


def test_a_disk_without_room_for_a_directory(tmp_path: Path) -> None:
    def fill() -> object:
        use_mounts_of_our_own()
        mount(tmp_path, b"nr_inodes=1")
        return write(tmp_path)

    assert (
        "chk-1/state cannot be written: the disk is full (it takes no more files: df -i shows it); free"
        in said_on_a_disk(fill)
    )


def test_a_read_only_file_system(tmp_path: Path) -> None:
    def write_and_discard() -> object:
        use_mounts_of_our_own()
        mount(tmp_path, SMALL_DISK)
        write(tmp_path, content=LARGE[: 64 * 1024])
        mount(tmp_path, b"", _MS_REMOUNT | _MS_RDONLY)
        said = []
        acts: list[Callable[[], object]] = [
            lambda: write(tmp_path),
            lambda: CheckpointStorage(str(tmp_path), JOB).discard(1),
        ]
        for act in acts:
            try:
                act()
            except StorageError as error:
                said.append(str(error))
        raise StorageError("\n".join(said))

    written, removed = said_on_a_disk(write_and_discard).splitlines()

    advice = (
        "the file system is read-only; mount it for writing, or set execution.checkpointing.dir to another directory"
    )
    assert written == f"checkpoint file {tmp_path}/{JOB}/chk-1/state cannot be written: {advice}"
    assert removed == f"checkpoint file {tmp_path}/{JOB}/chk-1/_metadata cannot be removed: {advice}"


def test_a_file_above_the_limit_of_the_process(tmp_path: Path) -> None:
    def limited() -> object:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            return write(tmp_path)
        finally:
            assert os.listdir(tmp_path / JOB / "chk-1") == []

    assert said_in_a_child(limited) == (
        f"checkpoint file {tmp_path}/{JOB}/chk-1/state cannot be written: the file is larger than this process or the "
        "file system allows; "
        "raise the limit (ulimit -f), or set execution.checkpointing.dir to another directory"
    )


def test_too_many_open_files(tmp_path: Path) -> None:
    def limited() -> object:
        storage = CheckpointStorage(str(tmp_path), JOB)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        return storage.write_state(1, "state", LARGE)

    assert said_in_a_child(limited).endswith(
        "cannot be written: this process has too many open files; raise the limit (ulimit -n)"
    )


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Path]:
    """Provide a directory that the user ``NOBODY``, or this user if it is not root, reaches and must not write to."""
    root = tmp_path / "foreign"
    for path in (root, *root.parents[:3]):
        path.mkdir(exist_ok=True)
        if os.geteuid() == 0:
            path.chmod(0o755)
    root.chmod(0o555)
    yield root
    root.chmod(0o755)


def as_nobody(act: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        if os.geteuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return act()

    return run


def test_no_permission(foreign: Path) -> None:
    user = os.geteuid() or NOBODY
    advice = (
        f"user {user} has no permission; give it the permission (chown, chmod), or set "
        "execution.checkpointing.dir to another directory"
    )

    assert (
        said_in_a_child(as_nobody(lambda: write(foreign)))
        == f"checkpoint file {foreign}/{JOB}/chk-1/state cannot be written: {advice}"
    )
    below = said_in_a_child(as_nobody(lambda: write(foreign / "new")))
    assert below == f"checkpoint file {foreign}/new/{JOB}/chk-1/state cannot be written: {advice}"


def test_no_permission_for_others_files(foreign: Path) -> None:
    foreign.chmod(0o755)
    storage = CheckpointStorage(str(foreign), JOB)
    handle = storage.write_state(1, "state", LARGE)
    if os.geteuid() != 0:
        (foreign / JOB).chmod(0)

    said = said_in_a_child(as_nobody(lambda: storage.read_state(handle)))
    (foreign / JOB).chmod(0o700)

    assert said.startswith(
        f"checkpoint file {foreign}/{JOB}/chk-1/state cannot be read: user {os.geteuid() or NOBODY} has no permission"
    )


def test_a_directory_that_vanished_is_not_made_again(tmp_path: Path) -> None:
    """The directory may be a mount that is gone, and nobody looks for checkpoints below it.

    When it is back, the next checkpoint succeeds.
    """
    root = tmp_path / "root"
    storage = CheckpointStorage(str(root), JOB)
    storage.write_state(1, "state", LARGE)
    root.rename(tmp_path / "gone")

    with pytest.raises(StorageError) as caught:
        storage.write_state(2, "state", LARGE)

    assert str(caught.value) == (
        f"checkpoint file {root}/{JOB}/chk-2/state cannot be written: the file or its directory does not exist; was it "
        "removed, or is a "
        "mount missing? Put it back"
    )
    (tmp_path / "gone").rename(root)
    storage.write_state(2, "state", LARGE)


@pytest.mark.parametrize("place", ["", JOB, f"{JOB}/chk-1"])
def test_a_file_in_the_place_of_a_directory(tmp_path: Path, place: str) -> None:
    path = tmp_path / "root" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")

    with pytest.raises(
        StorageError, match="cannot be written: a part of its path is a file or a symbolic link instead of a directory"
    ):
        write(tmp_path / "root")


def test_a_directory_in_the_way_of_a_file_is_not_removed(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / JOB / "chk-1" / "mine").mkdir()

    with pytest.raises(
        StorageError,
        match="chk-1/mine cannot be removed: it is a directory, which flowlet has not made; remove it by hand",
    ):
        CheckpointStorage(str(tmp_path), JOB).discard(1)


# ---------------------------------------------------------------- loss of power


def manifest_of(*states: StateHandle) -> CheckpointManifest:
    entries = [SubtaskEntry("v", index, each) for index, each in enumerate(states)]
    return CheckpointManifest(JOB, "job", 1, 0, {}, entries)


class Recorder:
    """The calls to a file system: ("fsync", path), ("rename", path), ("mkdir", path)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, str]] = []
        self._fsync, self._replace, self._mkdir = os.fsync, os.replace, os.mkdir
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "replace", self.replace)
        monkeypatch.setattr(os, "mkdir", self.mkdir)

    @staticmethod
    def _path_of(fd: int) -> str:
        return os.readlink(f"/proc/self/fd/{fd}")

    def fsync(self, fd: int) -> None:
        self._fsync(fd)
        self.events.append(("fsync", self._path_of(fd)))

    def replace(self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        self._replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self.events.append(("rename", f"{self._path_of(src_dir_fd)}/{source} {self._path_of(dst_dir_fd)}/{target}"))

    def mkdir(self, path: str | Path, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._mkdir(path, mode, dir_fd=dir_fd)
        self.events.append(("mkdir", str(path) if dir_fd is None else f"{self._path_of(dir_fd)}/{path}"))

    def surviving_files(self, num_events: int) -> set[str]:
        """Return the files that are whole after a loss of power, if no more is written than must be."""
        synced: set[str] = set()  # files whose content is on disk
        named: dict[str, str] = {}  # what directories say at the moment: path -> the temporary file behind it
        kept: dict[str, str] = {}  # that table, as it is on disk
        new_folders: set[str] = set()
        for kind, text in self.events[:num_events]:
            match kind:
                case "rename":
                    source, _, target = text.partition(" ")
                    named[target] = source
                case "mkdir":
                    new_folders.add(text)
                case _:
                    synced.add(text)
                    kept |= {target: source for target, source in named.items() if os.path.dirname(target) == text}
                    new_folders = {folder for folder in new_folders if os.path.dirname(folder) != text}
        return {
            target
            for target, source in kept.items()
            if source in synced and not any(target.startswith(f"{each}/") for each in new_folders)
        }


def test_what_is_acknowledged_survives_a_loss_of_power_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that was returned is on disk, with all directories above it, and so is what a manifest names."""
    recorder = Recorder(monkeypatch)
    storage = CheckpointStorage(str(tmp_path / "new" / "root"), JOB)
    folder = f"{tmp_path}/new/root/{JOB}/chk-1"

    handles = []
    for name in ("a", "b"):
        handles.append(storage.write_state(1, name, LARGE))
        assert f"{folder}/{name}" in recorder.surviving_files(len(recorder.events))
    num_before = len(recorder.events)
    storage.write_manifest(manifest_of(*handles))

    assert recorder.surviving_files(len(recorder.events)) == {f"{folder}/a", f"{folder}/b", f"{folder}/_metadata"}
    for cut in range(num_before, len(recorder.events) + 1):
        assert {f"{folder}/a", f"{folder}/b"} <= recorder.surviving_files(cut)


def test_a_directory_that_another_process_made_and_did_not_settle_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(monkeypatch)
    (tmp_path / JOB / "chk-1").mkdir(parents=True)
    storage = CheckpointStorage(str(tmp_path), JOB)

    handle = storage.write_state(1, "a", LARGE)
    storage.write_manifest(manifest_of(handle))

    assert len(recorder.surviving_files(len(recorder.events))) == 2


def test_the_manifest_is_gone_for_good_before_a_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = CheckpointStorage(str(tmp_path), JOB)
    storage.write_manifest(manifest_of(storage.write_state(1, "a", LARGE)))
    done = []
    unlink, fsync = os.unlink, os.fsync

    def note_unlink(path: str, *, dir_fd: int) -> None:
        done.append(path)
        unlink(path, dir_fd=dir_fd)

    def note_fsync(fd: int) -> None:
        done.append("fsync")
        fsync(fd)

    monkeypatch.setattr(os, "unlink", note_unlink)
    monkeypatch.setattr(os, "fsync", note_fsync)
    storage.discard(1)

    assert done[:3] == ["_metadata", "fsync", "a"]


# ---------------------------------------------------------------- others at once


def test_a_writer_makes_again_what_another_process_removes_as_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job's last checkpoint is discarded, and the job's directory with it, just when the next one begins."""
    storage, mkdir, num_left = CheckpointStorage(str(tmp_path), JOB), os.mkdir, 3

    def mkdir_in_vain(name: str, mode: int, *, dir_fd: int) -> None:
        nonlocal num_left
        mkdir(name, mode, dir_fd=dir_fd)
        if name == JOB and num_left > 0:
            num_left -= 1
            os.rmdir(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", mkdir_in_vain)

    assert storage.read_state(storage.write_state(1, "a", LARGE)) == LARGE


@pytest.mark.parametrize("num_writes", [4, 5])
def test_files_that_appear_while_a_folder_is_removed_are_removed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_writes: int
) -> None:
    """Late writers of an aborted checkpoint may make them; a writer that never ends is reported."""
    storage, rmdir, names = CheckpointStorage(str(tmp_path), JOB), os.rmdir, iter("abcde"[:num_writes])
    storage.write_state(1, "first", LARGE)

    def rmdir_late(name: str, *, dir_fd: int) -> None:
        if (late := next(names, None)) is not None:
            (tmp_path / JOB / "chk-1" / late).write_bytes(b"x")
        rmdir(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", rmdir_late)
    if num_writes == 5:
        with pytest.raises(
            StorageError, match="chk-1 cannot be removed: other processes still write into it; try again when they have"
        ):
            storage.discard(1)
    else:
        storage.discard(1)

    assert (tmp_path / JOB).exists() == (num_writes == 5)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_step_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """An fsync that failed is never tried again: the kernel may have dropped the pages that it could not write."""
    write(tmp_path, "first")

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(
            StorageError, match="/second cannot be written: the disk reports an I/O error; check the disk and the log"
        ):
            write(tmp_path, "second")

    assert os.listdir(tmp_path / JOB / "chk-1") == ["first"]


def test_a_file_system_that_cannot_sync_directories_is_good_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def fail_for_folders(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(22, "Invalid argument")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    storage = CheckpointStorage(str(tmp_path), JOB)

    assert storage.read_state(storage.write_state(1, "a", LARGE)) == LARGE


def test_an_unknown_failure_is_told_in_the_systems_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(112, "Host is down")

    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(StorageError, match="cannot be written: Host is down; mend that, or set execution"):
        write(tmp_path)
