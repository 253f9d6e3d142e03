"""Which parts stay, and which go when there is no more room."""

import hashlib
from collections.abc import Callable
from typing import TypeVar

import pytest

from flowlet.errors import JobGraphError, StorageError
from flowlet.jm.shipped.file_keeper import THREAD_NAME, FileKeeper, FilesFullError
from flowlet.rpc.shipped_files import ShippedFile, ShippedFiles
from flowlet.shipping.part_store import PartLostError

T = TypeVar("T")


class InMemoryParts:
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


def digest_of(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def file_of(content: bytes) -> ShippedFiles:
    return ShippedFiles(python_files=[ShippedFile("a.py", len(content), [digest_of(content)])])


A, B, C = (letter * 10 for letter in (b"a", b"b", b"c"))


async def test_a_part_is_kept_once_and_missing_ones_are_named() -> None:
    parts = InMemoryParts()
    keeper = FileKeeper(parts, run_at_once, list, 100)

    assert await keeper.missing([digest_of(A), digest_of(B)]) == [digest_of(A), digest_of(B)]
    await keeper.put(digest_of(A), A)
    await keeper.put(digest_of(A), A)

    assert parts.num_writes == 1
    assert await keeper.missing([digest_of(A), digest_of(B)]) == [digest_of(B)]
    assert await keeper.read(digest_of(A)) == A
    assert await keeper.read(digest_of(B)) is None


async def test_what_lay_there_before_is_known() -> None:
    parts = InMemoryParts()
    parts.contents[digest_of(A)] = A

    assert await FileKeeper(parts, run_at_once, list, 100).missing([digest_of(A)]) == []


async def test_the_part_that_was_asked_for_longest_ago_makes_room() -> None:
    parts = InMemoryParts()
    keeper = FileKeeper(parts, run_at_once, list, 25)
    await keeper.put(digest_of(A), A)
    await keeper.put(digest_of(B), B)
    await keeper.missing([digest_of(A)])

    await keeper.put(digest_of(C), C)

    assert sorted(parts.contents.values()) == [A, C]


async def test_parts_of_running_jobs_stay_and_leave_no_room() -> None:
    parts = InMemoryParts()
    keeper = FileKeeper(parts, run_at_once, lambda: [file_of(A)], 15)
    await keeper.put(digest_of(A), A)

    with pytest.raises(FilesFullError, match="which is the limit of the JobManager"):
        await keeper.put(digest_of(B), B)
    assert list(parts.contents.values()) == [A]


async def test_a_job_whose_parts_are_missing_is_refused() -> None:
    keeper = FileKeeper(InMemoryParts(), run_at_once, list, 100)

    await keeper.check(ShippedFiles())
    with pytest.raises(JobGraphError, match="1 parts of the job's files are not at the JobManager"):
        await keeper.check(file_of(A))


async def test_a_part_that_is_lost_on_disk_is_shipped_again_with_the_next_job() -> None:
    parts = InMemoryParts()
    keeper = FileKeeper(parts, run_at_once, list, 100)
    await keeper.put(digest_of(A), A)
    parts.error = PartLostError("it has changed")

    with pytest.raises(StorageError, match="it has changed"):
        await keeper.read(digest_of(A))
    assert await keeper.missing([digest_of(A)]) == [digest_of(A)]

    parts.error = None
    await keeper.put(digest_of(A), A)
    assert (await keeper.read(digest_of(A)), parts.num_writes) == (A, 2)


async def test_a_part_that_cannot_be_read_now_is_not_lost() -> None:
    parts = InMemoryParts()
    keeper = FileKeeper(parts, run_at_once, list, 100)
    await keeper.put(digest_of(A), A)
    parts.error = StorageError("too many open files")

    with pytest.raises(StorageError, match="too many open files"):
        await keeper.read(digest_of(A))
    assert await keeper.missing([digest_of(A)]) == []
