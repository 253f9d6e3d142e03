"""The parts that stay, and the parts that go when there is no more room."""

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from flowlet.errors import JobGraphError, StorageError
from flowlet.messages.program_bundle import ShippedFile, ShippedFiles
from flowlet.shipping.bundle_store import THREAD_NAME, FileKeeper, FilesFullError, PartLostError, PartStore

T = TypeVar("T")


class InMemoryParts(PartStore):
    """Parts in a dictionary; counts the writes."""

    def __init__(self) -> None:
        self.contents: dict[bytes, bytes] = {}
        self.num_writes = 0
        self.error: StorageError | None = None  # of the next read

    def sizes(self) -> dict[bytes, int]:
        return {digest: len(content) for digest, content in self.contents.items()}

    def put(self, digest: bytes, content: bytes) -> None:
        self.num_writes += 1
        self.contents[digest] = content

    def read(self, digest: bytes) -> bytes:
        if self.error is not None:
            raise self.error
        return self.contents[digest]

    def remove(self, digest: bytes) -> None:
        del self.contents[digest]


async def run_at_once(function: Callable[[], T], name: str) -> T:
    assert name == THREAD_NAME
    return function()


def made_keeper(max_bytes: int = 100, of_jobs: Sequence[ShippedFiles] = ()) -> tuple[InMemoryParts, FileKeeper]:
    parts = InMemoryParts()
    return parts, FileKeeper(parts, run_at_once, lambda: list(of_jobs), max_bytes)


def digest_of(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def file_of(content: bytes) -> ShippedFiles:
    return ShippedFiles(python_files=[ShippedFile("a.py", len(content), [digest_of(content)])])


class HeldThreads:
    """Runs functions "on other threads", each when the test says so, in any order."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Event] = []

    async def run(self, function: Callable[[], T], name: str) -> T:
        is_released = asyncio.Event()
        self.waiting.append(is_released)

        async def work() -> T:
            await is_released.wait()
            return function()

        return await asyncio.shield(asyncio.ensure_future(work()))

    async def release(self, index: int) -> None:
        """Let the waiting call at ``index`` run to its end, and all that follows from it."""
        self.waiting.pop(index).set()
        await settle()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def full_keeper(parts: InMemoryParts, threads: HeldThreads, max_bytes: int) -> FileKeeper:
    """Return a keeper that has read its directory."""
    keeper = FileKeeper(parts, threads.run, list, max_bytes)
    asked = asyncio.ensure_future(keeper.missing([]))
    await settle()
    await threads.release(0)
    await asked
    return keeper


async def finish(threads: HeldThreads) -> None:
    """The newest call first, which is the worst order."""
    while threads.waiting:
        await threads.release(-1)


A, B, C = (letter * 10 for letter in (b"a", b"b", b"c"))


async def test_a_part_is_kept_once_and_missing_ones_are_named() -> None:
    parts, keeper = made_keeper()

    assert await keeper.missing([digest_of(A), digest_of(B)]) == [digest_of(A), digest_of(B)]
    await keeper.put(digest_of(A), A)
    await keeper.put(digest_of(A), A)

    assert parts.num_writes == 1
    assert await keeper.missing([digest_of(A), digest_of(B)]) == [digest_of(B)]
    assert await keeper.read(digest_of(A)) == A
    assert await keeper.read(digest_of(B)) is None


async def test_what_lay_there_before_is_known() -> None:
    parts, keeper = made_keeper()
    parts.contents[digest_of(A)] = A

    assert await keeper.missing([digest_of(A)]) == []


async def test_the_part_that_was_asked_for_longest_ago_makes_room() -> None:
    parts, keeper = made_keeper(25)
    await keeper.put(digest_of(A), A)
    await keeper.put(digest_of(B), B)
    await keeper.missing([digest_of(A)])

    await keeper.put(digest_of(C), C)

    assert sorted(parts.contents.values()) == [A, C]


async def test_parts_of_running_jobs_stay_and_leave_no_room() -> None:
    parts, keeper = made_keeper(15, [file_of(A)])
    await keeper.put(digest_of(A), A)

    with pytest.raises(FilesFullError, match="which is the limit of the JobManager"):
        await keeper.put(digest_of(B), B)
    assert list(parts.contents.values()) == [A]


async def test_a_job_whose_parts_are_missing_is_refused() -> None:
    _, keeper = made_keeper()

    await keeper.check(ShippedFiles())
    with pytest.raises(JobGraphError, match="1 parts of the job's files are not at the JobManager"):
        await keeper.check(file_of(A))


async def test_a_part_that_is_lost_on_disk_is_shipped_again_with_the_next_job() -> None:
    parts, keeper = made_keeper()
    await keeper.put(digest_of(A), A)
    parts.error = PartLostError("it has changed")

    with pytest.raises(StorageError, match="it has changed"):
        await keeper.read(digest_of(A))
    assert await keeper.missing([digest_of(A)]) == [digest_of(A)]

    parts.error = None
    await keeper.put(digest_of(A), A)
    assert (await keeper.read(digest_of(A)), parts.num_writes) == (A, 2)


async def test_a_part_that_cannot_be_read_now_is_not_lost() -> None:
    parts, keeper = made_keeper()
    await keeper.put(digest_of(A), A)
    parts.error = StorageError("too many open files")

    with pytest.raises(StorageError, match="too many open files"):
        await keeper.read(digest_of(A))
    assert await keeper.missing([digest_of(A)]) == []


async def test_a_part_that_comes_back_while_it_is_being_removed_is_there_afterwards() -> None:
    """A part is missing from the moment at which it must go, so a client sends it again at once."""
    parts, threads = InMemoryParts(), HeldThreads()
    parts.contents[digest_of(A)] = A
    keeper = await full_keeper(parts, threads, 25)
    first = asyncio.ensure_future(keeper.put(digest_of(B * 2), B * 2))
    await settle()
    assert await keeper.missing([digest_of(A)]) == [digest_of(A)]

    again = asyncio.ensure_future(keeper.put(digest_of(A), A))
    await settle()
    await finish(threads)
    await asyncio.gather(first, again)

    assert await keeper.missing([digest_of(A)]) == []
    assert parts.contents[digest_of(A)] == A


async def test_parts_that_come_at_once_keep_the_limit() -> None:
    parts, threads = InMemoryParts(), HeldThreads()
    keeper = await full_keeper(parts, threads, 25)
    most = 0

    puts = [asyncio.ensure_future(keeper.put(digest_of(content), content)) for content in (A, B, C, A[1:], B[1:])]
    await settle()
    while threads.waiting:
        await threads.release(-1)
        most = max(most, sum(map(len, parts.contents.values())))
    await asyncio.gather(*puts)

    assert most <= 25


async def test_a_part_that_comes_twice_at_once_is_written_once() -> None:
    parts, threads = InMemoryParts(), HeldThreads()
    keeper = await full_keeper(parts, threads, 25)

    puts = [asyncio.ensure_future(keeper.put(digest_of(A), A)) for _ in range(2)]
    await settle()
    await finish(threads)
    await asyncio.gather(*puts)

    assert parts.num_writes == 1


async def test_a_part_whose_client_left_meanwhile_counts() -> None:
    """The thread cannot be stopped: it writes a part for which no caller waits any more."""
    parts, threads = InMemoryParts(), HeldThreads()
    keeper = await full_keeper(parts, threads, 15)
    left = asyncio.ensure_future(keeper.put(digest_of(A), A))
    await settle()
    left.cancel()

    stayed = asyncio.ensure_future(keeper.put(digest_of(B), B))
    await settle()
    await finish(threads)
    await asyncio.gather(left, stayed, return_exceptions=True)

    assert list(parts.contents.values()) == [B]
    assert await keeper.missing([digest_of(A), digest_of(B)]) == [digest_of(A)]


# -------------------------------------------------------------------- parts on disk


CONTENT = b"content"
DIGEST = hashlib.sha256(CONTENT).digest()


def opened(folder: Path) -> PartStore:
    store = PartStore(lambda: folder)
    store.sizes()
    return store


def test_a_part_is_there_until_it_is_removed_also_for_another_process(tmp_path: Path) -> None:
    opened(tmp_path / "parts").put(DIGEST, CONTENT)

    store = PartStore(lambda: tmp_path / "parts")
    assert store.sizes() == {DIGEST: 7}
    assert store.read(DIGEST) == CONTENT
    store.remove(DIGEST)
    store.remove(DIGEST)
    assert store.sizes() == {}


def test_sizes_are_in_the_order_of_writing_and_what_was_cut_off_is_removed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    others = [hashlib.sha256(bytes([number])).digest() for number in range(3)]
    for position, digest in enumerate(others):
        store.put(digest, bytes([position]))
        os.utime(tmp_path / digest.hex(), ns=(position, position))
    (tmp_path / f"{DIGEST.hex()}.1234").write_bytes(b"half")

    assert list(store.sizes()) == others
    assert len(os.listdir(tmp_path)) == 3


def test_a_part_that_is_gone_or_has_changed_is_an_error(tmp_path: Path) -> None:
    store = opened(tmp_path)

    with pytest.raises(PartLostError, match="is gone; submit the job again"):
        store.read(DIGEST)
    (tmp_path / DIGEST.hex()).write_bytes(b"other")
    with pytest.raises(PartLostError, match="has changed; submit the job again"):
        store.read(DIGEST)


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="cannot be read"):
        opened(tmp_path / "file")
