"""Content that was written is read or refused, and no path leads out of the job's directory."""

import hashlib
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from flowlet.errors import StorageError
from flowlet.messages.job_messages import StateHandle, SubtaskEntry
from flowlet.storage.checkpoint_storage import INLINE_BYTES, CheckpointStorage
from flowlet.storage.manifest import CheckpointManifest, SourceEntry

# Numpy has threads, and we fork.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

JOB = "0123456789abcdef" * 2
KEY = b"secret" * 6
LARGE = bytes(range(256)) * 100
assert len(LARGE) > INLINE_BYTES


def storage_in(root: Path, job_id: str = JOB, key: bytes = KEY) -> CheckpointStorage:
    return CheckpointStorage(str(root), job_id, key)


def manifest_of(
    checkpoint_id: int, *states: StateHandle, job_id: str = JOB, sources: tuple[SourceEntry, ...] = ()
) -> CheckpointManifest:
    subtasks = [SubtaskEntry("v", index, state) for index, state in enumerate(states)]
    return CheckpointManifest(job_id, "a job", checkpoint_id, 1000, {"v": len(states)}, subtasks, list(sources))


def completed(root: Path, checkpoint_id: int = 7) -> tuple[CheckpointStorage, StateHandle]:
    """Return a storage with one complete checkpoint, and the handle of its one large state."""
    storage = storage_in(root)
    handle = storage.write_state(checkpoint_id, "state-a", LARGE)
    storage.write_manifest(manifest_of(checkpoint_id, handle))
    return storage, handle


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


# ---------------------------------------------------------------- shared files


def shared_in(storage: CheckpointStorage, content: bytes) -> StateHandle:
    digest = hashlib.sha256(content)
    handle = StateHandle(len(content), digest.digest(), path=f"shared/{digest.hexdigest()}")
    storage.write_shared(handle, content)
    return handle


def test_a_shared_file_outlives_its_checkpoint_and_is_checked_with_it(tmp_path: Path) -> None:
    storage = storage_in(tmp_path)
    first, second = shared_in(storage, b"first"), shared_in(storage, b"second")
    entry = SubtaskEntry("v", 0, storage.write_state(1, "state", b"small"), shared=[first, second])
    for checkpoint_id in (1, 2):
        storage.write_manifest(msgspec.structs.replace(manifest_of(checkpoint_id), subtasks=[entry]))

    storage.discard(1)
    assert storage.read_manifest(2).subtasks == [entry]
    assert storage.read_state(second) == b"second"
    storage.discard_shared([str(second.path)])

    assert tree(tmp_path / JOB) == ["chk-2", "chk-2/_metadata", "shared", str(first.path)]
    with pytest.raises(StorageError, match=f"{second.sha256.hex()} is missing"):
        storage.read_manifest(2)
    storage.discard(2)
    storage.discard_all_shared()
    storage.discard_all_shared()
    assert tree(tmp_path) == []


def test_a_changed_shared_file_is_refused(tmp_path: Path) -> None:
    storage = storage_in(tmp_path)
    handle = shared_in(storage, b"first")
    (tmp_path / JOB / str(handle.path)).write_bytes(b"First")

    with pytest.raises(StorageError, match="its SHA-256 is wrong"):
        storage.read_state(handle)


# ---------------------------------------------------------------- states


def test_a_large_state_is_a_file_and_a_small_one_stays_in_its_handle(tmp_path: Path) -> None:
    storage = storage_in(tmp_path)

    large, small = storage.write_state(3, "large", LARGE), storage.write_state(3, "small", LARGE[:INLINE_BYTES])

    assert (large.path, large.inline, large.num_bytes) == ("chk-3/large", b"", len(LARGE))
    assert (small.path, small.inline) == (None, LARGE[:INLINE_BYTES])
    assert [storage.read_state(each) for each in (large, small)] == [LARGE, LARGE[:INLINE_BYTES]]
    assert storage.read_state(storage.write_state(3, "empty", b"")) == b""
    assert tree(tmp_path) == [JOB, f"{JOB}/chk-3", f"{JOB}/chk-3/large"]


def test_nobody_else_may_read_directories_and_files(tmp_path: Path) -> None:
    """The modes hold for any umask, and for directories above that of the job, too."""
    former = os.umask(0)
    try:
        completed(tmp_path / "new" / "checkpoints")
    finally:
        os.umask(former)

    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in tmp_path.rglob("*")}
    assert modes == {(True, 0o700), (False, 0o600)}


@pytest.mark.parametrize("url", ["file://{}", "FILE:{}", "{}"])
def test_a_directory_is_named_by_its_path_or_url(tmp_path: Path, url: str) -> None:
    storage = CheckpointStorage(url.format(tmp_path / "a dir"), JOB)

    storage.write_state(1, "a", LARGE)

    assert (tmp_path / "a dir" / JOB / "chk-1" / "a").read_bytes() == LARGE


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("memory://x", "'memory://x': it is the memory of one process"),
        *(
            (url, f"'{url}': it is not an absolute path")
            for url in ("relative/x", "~/x", "file:x", "file://host/x", "")
        ),
        ("/a\0b", "it is not an absolute path"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str, sentence: str) -> None:
    with pytest.raises(StorageError, match=sentence):
        CheckpointStorage(url, JOB)


@pytest.mark.parametrize("job_id", ["", "..", "../" * 10 + "ab", JOB.upper(), JOB + "0", JOB + "\n"])
def test_an_id_of_a_job_is_32_hex_digits(tmp_path: Path, job_id: str) -> None:
    with pytest.raises(StorageError, match="no id of a job"):
        CheckpointStorage(str(tmp_path), job_id)


BAD_NAMES = ["", ".", "..", "../a", "/a", "a/b", "_metadata", ".hidden", "a\n", "a\0", "x" * 201, "ä"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match="cannot be the name"):
        storage_in(tmp_path).write_state(1, name, LARGE)

    assert tree(tmp_path) == []


@pytest.mark.parametrize(
    "path",
    [f"chk-1/{name}" for name in BAD_NAMES] + ["../chk-1/a", "/etc/passwd", "chk-1", "chk-01/a", "chk--1/a", "b/a"],
)
def test_a_handle_that_leads_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    storage, handle = completed(tmp_path)
    moved = msgspec.structs.replace(handle, path=path)

    with pytest.raises(StorageError, match="is no file of a checkpoint"):
        storage.read_state(moved)
    with pytest.raises(StorageError, match="is no file of a checkpoint"):
        storage.write_manifest(manifest_of(8, moved))


def test_ids_of_checkpoints_count_from_0(tmp_path: Path) -> None:
    storage = storage_in(tmp_path)

    for act in (storage.discard, storage.read_manifest, lambda number: storage.write_state(number, "a", LARGE)):
        with pytest.raises(StorageError, match="-1 is no id of a checkpoint"):
            act(-1)


def test_subtasks_in_many_processes_write_to_one_checkpoint(tmp_path: Path) -> None:
    """All subtasks make the checkpoint's directories at one time."""
    contents = [LARGE * (index + 1) for index in range(8)]
    pids = []
    for index, content in enumerate(contents):
        if (pid := os.fork()) == 0:
            storage_in(tmp_path / "new").write_state(5, f"state-{index}", content)
            os._exit(0)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 8

    storage = storage_in(tmp_path / "new")
    digests = [hashlib.sha256(content).digest() for content in contents]
    handles = [
        StateHandle(len(contents[index]), digest, f"chk-5/state-{index}") for index, digest in enumerate(digests)
    ]
    storage.write_manifest(manifest_of(5, *handles))

    assert [
        storage.read_state(entry.state) for entry in storage.read_manifest(5).subtasks if entry.state is not None
    ] == contents


def test_threads_write_while_others_discard(tmp_path: Path) -> None:
    """A checkpoint may vanish under a writer: then it gets an error, and never a directory that is gone for good."""
    storage = storage_in(tmp_path)

    def write(number: int) -> None:
        storage.read_state(storage.write_state(number, "a", LARGE))
        storage.discard(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(40)))

    assert storage.complete_checkpoints() == []
    assert tree(tmp_path) == []


def test_nothing_stays_open(tmp_path: Path) -> None:
    """A process has 1024 files, and takes checkpoints for weeks."""
    before = len(os.listdir("/proc/self/fd"))

    storage, handle = completed(tmp_path)
    storage.read_state(handle)
    storage.read_manifest(7)
    storage.complete_checkpoints()
    for damage in (Path.unlink, Path.mkdir):
        damage(tmp_path / JOB / "chk-7" / "state-a")
        with pytest.raises(StorageError):
            storage.read_state(handle)
    (tmp_path / JOB / "chk-7" / "state-a").rmdir()
    storage.discard(7)

    assert len(os.listdir("/proc/self/fd")) == before


def test_a_storage_that_was_used_goes_on_in_a_forked_process(tmp_path: Path) -> None:
    storage, handle = completed(tmp_path)

    pid = os.fork()
    if pid == 0:
        os._exit(0 if storage.read_state(handle) == LARGE and storage.write_state(7, "b", LARGE).path else 1)

    assert os.waitpid(pid, 0)[1] == 0


# ---------------------------------------------------------------- manifests


def test_a_manifest_comes_back(tmp_path: Path) -> None:
    storage = storage_in(tmp_path)
    sources = (SourceEntry("small", b"s"), SourceEntry("large", LARGE), SourceEntry("larger", LARGE * 2))
    manifest = manifest_of(
        9, storage.write_state(9, "a", LARGE), storage.write_state(9, "b", b"small"), sources=sources
    )

    storage.write_manifest(manifest)

    assert storage_in(tmp_path).read_manifest(9) == manifest
    assert (tmp_path / JOB / "chk-9" / "_metadata").stat().st_size < INLINE_BYTES, "nothing large is inside"


def test_a_checkpoint_exists_with_its_manifest(tmp_path: Path) -> None:
    storage = storage_in(tmp_path)
    assert storage.complete_checkpoints() == []

    handles = {number: storage.write_state(number, "a", LARGE) for number in (10, 9, 11)}
    (tmp_path / JOB / "chk-x").mkdir()
    assert storage.complete_checkpoints() == []

    for number in (100, 10, 9, 1):
        storage.write_manifest(manifest_of(number, *([handles[number]] if number in handles else [])))
    assert storage.complete_checkpoints() == [1, 9, 10, 100]


def test_a_checkpoint_whose_file_is_gone_does_not_become_complete(tmp_path: Path) -> None:
    storage = storage_in(tmp_path)
    handle = storage.write_state(1, "a", LARGE)
    (tmp_path / JOB / "chk-1" / "a").unlink()

    with pytest.raises(
        StorageError, match=f"checkpoint file {tmp_path}/{JOB}/chk-1/a is missing: put the original back"
    ):
        storage.write_manifest(manifest_of(1, handle))

    assert storage.complete_checkpoints() == []


Damage = Callable[[Path], object]


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _replaced(path: Path) -> Path:
    path.unlink()
    return path


DAMAGES: list[tuple[Damage, str]] = [
    (lambda path: path.unlink(), "cannot be read: the file or its directory does not exist; was it removed"),
    (lambda path: path.write_bytes(b""), "is cut off"),
    (lambda path: path.write_bytes(path.read_bytes()[:-1]), "is cut off: it has"),
    (lambda path: path.write_bytes(path.read_bytes() + b"x"), "was changed after it was written"),
    (lambda path: _flip(path, -1), "was changed after it was written"),
    (lambda path: _replaced(path).symlink_to("/etc/passwd"), "it is a symbolic link, which is not followed"),
    (lambda path: os.mkfifo(_replaced(path)), "it is not a regular file"),
    (lambda path: _replaced(path).mkdir(), "it is a directory, which flowlet has not made; remove it by hand"),
]
DAMAGE_NAMES = ["missing", "empty", "truncated", "longer", "flipped", "symlink", "fifo", "directory"]


@pytest.mark.parametrize("name", ["state-a", "_metadata"])
@pytest.mark.parametrize(("damage", "sentence"), DAMAGES, ids=DAMAGE_NAMES)
def test_a_damaged_state_or_manifest_is_refused(tmp_path: Path, damage: Damage, sentence: str, name: str) -> None:
    storage, handle = completed(tmp_path)
    path = tmp_path / JOB / "chk-7" / name

    damage(path)

    with pytest.raises(StorageError, match=f"^checkpoint file {path} ") as caught:
        storage.read_state(handle) if name == "state-a" else storage.read_manifest(7)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"x")], ids=["missing", "truncated"]
)
def test_a_manifest_is_refused_if_one_of_its_files_is_not_as_it_says(tmp_path: Path, damage: Damage) -> None:
    """A restore ends before any task is deployed."""
    storage, _ = completed(tmp_path)
    path = tmp_path / JOB / "chk-7" / "state-a"

    damage(path)

    with pytest.raises(StorageError, match=f"^checkpoint file {path} (is missing|has 1 bytes instead of {len(LARGE)})"):
        storage.read_manifest(7)


def test_a_manifest_with_any_bit_flipped_is_refused(tmp_path: Path) -> None:
    storage, _ = completed(tmp_path)
    path = tmp_path / JOB / "chk-7" / "_metadata"

    num_bytes, num_in_header = path.stat().st_size, 60
    for at in (*range(num_in_header), *range(num_in_header, num_bytes, 7)):
        _flip(path, at)
        with pytest.raises(StorageError, match=f"^checkpoint file {path} "):
            storage.read_manifest(7)
        _flip(path, at)
    storage.read_manifest(7)


def test_a_file_that_has_become_huge_is_not_read(tmp_path: Path) -> None:
    storage, handle = completed(tmp_path)
    os.truncate(tmp_path / JOB / "chk-7" / "state-a", 1 << 40)

    with pytest.raises(
        StorageError, match=f"state-a has {1 << 40} bytes instead of at most {len(LARGE)}: it was changed after"
    ):
        storage.read_state(handle)


def test_a_manifest_of_another_version_or_cluster_says_so(tmp_path: Path) -> None:
    storage, _ = completed(tmp_path)

    with pytest.raises(StorageError, match="_metadata is of a cluster with another secret: start the JobManager with"):
        storage_in(tmp_path, key=b"another" * 6).read_manifest(7)
    _flip(tmp_path / JOB / "chk-7" / "_metadata", 4)
    with pytest.raises(StorageError, match="has version 257, this flowlet reads 1: use the flowlet that wrote it"):
        storage.read_manifest(7)


def test_without_a_key_no_manifest_is_read(tmp_path: Path) -> None:
    """Everyone could have written it."""
    keyless = storage_in(tmp_path, key=b"")
    keyless.write_manifest(manifest_of(7))

    with pytest.raises(StorageError, match="_metadata cannot be verified without the cluster's secret"):
        keyless.read_manifest(7)


def test_a_manifest_of_another_checkpoint_or_job_is_refused(tmp_path: Path) -> None:
    """A right MAC is not enough: an old manifest must not take the place of a new one."""
    storage, _ = completed(tmp_path)
    other_job = "f" * 32
    data = (tmp_path / JOB / "chk-7" / "_metadata").read_bytes()
    for folder in (tmp_path / JOB / "chk-8", tmp_path / other_job / "chk-7"):
        folder.mkdir(parents=True)
        (folder / "_metadata").write_bytes(data)

    with pytest.raises(StorageError, match=f"chk-8/_metadata is that of checkpoint 7 of job {JOB}"):
        storage.read_manifest(8)
    with pytest.raises(StorageError, match=f"{other_job}/chk-7/_metadata is that of checkpoint 7 of job {JOB}"):
        storage_in(tmp_path, other_job).read_manifest(7)


# ---------------------------------------------------------------- discarding


def test_a_discarded_checkpoint_leaves_nothing(tmp_path: Path) -> None:
    storage, _ = completed(tmp_path)
    completed(tmp_path, 8)
    (tmp_path / JOB / "chk-7" / ".state-b.0123.tmp").write_bytes(b"of a writer that was killed")

    storage.discard(7)

    assert storage.complete_checkpoints() == [8]
    assert tree(tmp_path / JOB) == ["chk-8", "chk-8/_metadata", "chk-8/state-a"]
    storage.write_state(9, "of-an-aborted-one", LARGE)
    for checkpoint_id in (8, 8, 9):
        storage.discard(checkpoint_id)
    assert tree(tmp_path) == []


def test_late_writers_of_aborted_checkpoints_leave_what_a_later_checkpoint_removes(tmp_path: Path) -> None:
    storage, _ = completed(tmp_path, 3)
    for number in (1, 2, 4, 5):
        storage.write_state(number, "late", LARGE)
    completed(tmp_path, 4)

    storage.discard_incomplete(before=5)

    assert sorted(os.listdir(tmp_path / JOB)) == ["chk-3", "chk-4", "chk-5"]


@pytest.mark.parametrize("place", ["chk-1", "job"])
def test_discarding_follows_no_link(tmp_path: Path, place: str) -> None:
    """A person who can write into the directory could otherwise have others' files removed."""
    precious = tmp_path / "precious"
    (precious / "chk-1").mkdir(parents=True)
    for folder in (precious, precious / "chk-1"):
        (folder / "file").write_bytes(b"x")
        (folder / "_metadata").write_bytes(b"x")
    root = tmp_path / "root"
    link = root / JOB if place == "job" else root / JOB / "chk-1"
    link.parent.mkdir(parents=True)
    link.symlink_to(precious)

    with pytest.raises(StorageError, match="a symbolic link instead of a directory"):
        storage_in(root).discard(1)

    assert len(tree(precious)) == 5


def test_links_in_a_checkpoint_are_removed_and_not_what_they_lead_to(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(b"x")
    storage, _ = completed(tmp_path / "root")
    (tmp_path / "root" / JOB / "chk-7" / "link").symlink_to(precious)

    storage.discard(7)

    assert tree(tmp_path) == ["precious", "precious/file", "root"]
