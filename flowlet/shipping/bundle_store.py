"""Keeps the parts of all bundles at the JobManager, and serves them: ``POST /files/missing``, ``PUT /files/:digest``,
``GET /files/:digest``.

Side:       loop; ``PartStore`` is shared, and blocks.
Invariants: the directory is read and written on other threads only, and changed by one call at a time, which goes on to
            its end when its caller is cancelled: so the sizes here are those of the files there (``LocalFiles``).  A
            part of a job that has not ended is never removed.
Rules:      parts of jobs that have ended stay as long as there is room, because the next run of a program mostly ships
            its files unchanged; parts that were asked for longest ago go first.  Digests are SHA-256, in hex in a path.
            Lists of them are MessagePack.  As every request, these are signed with the secret.
Source:     Flink ``BlobServer``, ``PermanentBlobCache``.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Final

import msgspec

from flowlet.errors import JobGraphError, StorageError
from flowlet.messages.program_bundle import PART_BYTES, ShippedFiles
from flowlet.rpc.requests import MSGPACK, Request, Response, Route, decoded, error_response
from flowlet.storage.storage_files import FileWords, LocalFiles, failure_of
from netstack.late import dataclass
from netstack.loop.background_call import RunInBackground

_NAME: Final = re.compile(r"[0-9a-f]{64}")  # a digest in hex digits


_WORDS: Final = FileWords(
    "part of a shipped file", "start the JobManager with another TMPDIR or --job-store", "submit the job again"
)


class PartLostError(StorageError):
    """A part is gone, or has changed: it must be shipped again."""


class PartStore:
    """The parts as files in a directory.

    Threading: any thread; for one digest one call at a time.  Life cycle: ``sizes`` first, once.

    Args:
        find_directory: where they are kept; called by ``sizes``, because it may have to make it.
    """

    def __init__(self, find_directory: Callable[[], Path]) -> None:
        self._find_directory = find_directory
        self._files = LocalFiles(Path(), _WORDS)  # Written by ``sizes``, before any other call.

    def sizes(self) -> dict[bytes, int]:
        """List the parts that are there, the oldest file first, with their sizes.  Raises StorageError."""
        directory = self._find_directory()
        self._files = LocalFiles(directory, _WORDS)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = []
            for entry in os.scandir(directory):
                if _NAME.fullmatch(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, bytes.fromhex(entry.name), status.st_size))
                else:  # a write that was cut off
                    with suppress(OSError):
                        os.unlink(entry.path)
        except OSError as error:
            raise failure_of(error, str(directory), "read", words=_WORDS) from error
        return {digest: size for _, digest, size in sorted(found)}

    def put(self, digest: bytes, content: bytes) -> None:
        """Keep a part.  Raises StorageError: it cannot be written."""
        self._files.write((), digest.hex(), content)

    def read(self, digest: bytes) -> bytes:
        """Read a part.

        Raises:
            PartLostError: it is gone, or is not what it was.
            StorageError: it cannot be read.
        """
        name = digest.hex()
        size = self._files.size((), name)
        content = b"" if size is None or size > PART_BYTES else self._files.read((), name, PART_BYTES)
        if hashlib.sha256(content).digest() != digest:
            how = "is gone" if size is None else "has changed"
            raise PartLostError(f"{_WORDS.kind} {self._files.location((), name)} {how}; submit the job again")
        return content

    def remove(self, digest: bytes) -> None:
        """Forget a part; one that cannot be removed stays."""
        with suppress(StorageError):
            self._files.remove((), digest.hex())


THREAD_NAME: Final = "shipped files"


class FilesFullError(StorageError):
    """The files of running jobs leave no room."""


@dataclass(slots=True, eq=False)
class FileKeeper:
    """The parts of all jobs, within a limit.

    Threading: the JobManager's loop.

    Args:
        parts: where they are kept.
        needed: the files of all jobs that have not ended.
        max_bytes: of all parts together.
    """

    parts: PartStore
    run_in_background: RunInBackground
    needed: Callable[[], Iterable[ShippedFiles]]
    max_bytes: int
    # Of the parts that are there, by digest; the one first that was asked for longest ago.
    _sizes: dict[bytes, int] = field(init=False, default_factory=dict)
    _reading: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)  # held while the directory is read, once
    _is_read: bool = field(init=False, default=False)
    # Held while a part is written, and others are removed for it.
    _changing: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    # Those that write, or wait for their turn.
    _changes: set[asyncio.Task[None]] = field(init=False, default_factory=set)

    def __repr__(self) -> str:
        return f"<FileKeeper {len(self._sizes)} parts, {sum(self._sizes.values())} bytes>"

    async def missing(self, digests: Collection[bytes]) -> list[bytes]:
        """List the digests of parts that are not here.  Raises StorageError: the directory cannot be read."""
        await self._read_directory()
        return [each for each in digests if not self._touch(each)]

    async def put(self, digest: bytes, content: bytes) -> None:
        """Keep a part, whose digest was checked.

        Raises:
            FilesFullError: the files of running jobs leave no room.
            StorageError: it cannot be written.
        """
        change = asyncio.create_task(self._put(digest, content), name="part of a shipped file")
        self._changes.add(change)
        change.add_done_callback(self._change_ended)
        # A caller that is cancelled leaves the threads at work: what they do must be noted, and nothing may be written
        # meanwhile.
        await asyncio.shield(change)  # waits for the disk; ended by its answer, or by whoever cancels the caller

    async def _put(self, digest: bytes, content: bytes) -> None:
        await self._read_directory()
        async with self._changing:
            if self._touch(digest):  # maybe written while this call waited for its turn
                return
            await self._make_room(len(content))
            await self.run_in_background(lambda: self.parts.put(digest, content), THREAD_NAME)
            self._sizes[digest] = len(content)

    def _change_ended(self, change: asyncio.Task[None]) -> None:
        self._changes.discard(change)
        if not change.cancelled():
            change.exception()  # asked for here, because the caller may have been cancelled

    async def read(self, digest: bytes) -> bytes | None:
        """Read a part; None: it is not here.  Raises StorageError: it cannot be read."""
        await self._read_directory()
        if not self._touch(digest):
            return None
        try:
            return await self.run_in_background(lambda: self.parts.read(digest), THREAD_NAME)
        except PartLostError:
            self._sizes.pop(digest, None)  # so that the next job ships it again
            raise

    async def check(self, files: ShippedFiles) -> None:
        """Check that the parts of a job's files are here.  Raises JobGraphError: some are missing."""
        if not files:
            return
        missing = await self.missing(files.parts())
        if missing:
            raise JobGraphError(
                f"{len(missing)} parts of the job's files are not at the JobManager: start the job again"
            )

    def _touch(self, digest: bytes) -> bool:
        size = self._sizes.pop(digest, None)
        if size is None:
            return False
        self._sizes[digest] = size
        return True

    async def _read_directory(self) -> None:
        async with self._reading:  # the first reader reads, the others wait for it
            if not self._is_read:
                self._sizes = await self.run_in_background(self.parts.sizes, THREAD_NAME)
                self._is_read = True

    async def _make_room(self, num_bytes: int) -> None:
        excess = sum(self._sizes.values()) + num_bytes - self.max_bytes
        if excess <= 0:
            return
        needed = {digest for files in self.needed() for digest in files.parts()}
        removed = []
        for digest, size in self._sizes.items():
            if excess > 0 and digest not in needed:
                removed.append(digest)
                excess -= size
        if excess > 0:
            raise FilesFullError(
                f"the files of running jobs have {self.max_bytes} bytes, which is the limit of the JobManager"
            )
        for digest in removed:  # before their files are gone, so that ``missing`` names them from now on
            del self._sizes[digest]

        def remove_all() -> None:
            for digest in removed:
                self.parts.remove(digest)

        await self.run_in_background(remove_all, THREAD_NAME)


_decoder: Final = msgspec.msgpack.Decoder(list[bytes])


class FileApi:
    """The handlers of requests about parts.  Threading: the JobManager's loop."""

    def __init__(self, keeper: FileKeeper) -> None:
        self._keeper = keeper

    def routes(self) -> list[Route]:
        """List all routes."""
        return [
            Route("POST", "/files/missing", self.missing),
            Route("PUT", "/files/{digest}", self.put),
            Route("GET", "/files/{digest}", self.get),
        ]

    async def missing(self, request: Request) -> Response:
        """Answer which of the parts that the body names are not here."""
        digests = decoded(request, _decoder, "no list of digests")
        missing = await self._keeper.missing(digests)
        return Response(body=msgspec.msgpack.encode(missing), content_type=MSGPACK)

    async def put(self, request: Request) -> Response:
        """Keep a part: 201; 400 it is not what its name says; 503 there is no room."""
        digest, content = _digest_of(request), request.body
        if digest is None or len(content) > PART_BYTES or hashlib.sha256(content).digest() != digest:
            return error_response(400, f"a part has at most {PART_BYTES} bytes, and is named by their SHA-256")
        await self._keeper.put(digest, content)
        return Response(status=201)

    async def get(self, request: Request) -> Response:
        """Answer a part; 404 it is not here."""
        digest = _digest_of(request)
        # waits for the disk; ended by its answer, or by the TaskManager, who waits for so long
        content = None if digest is None else await self._keeper.read(digest)
        if content is None:
            return error_response(404, "there is no such part of a shipped file")
        return Response(body=content, content_type="application/octet-stream")


def _digest_of(request: Request) -> bytes | None:
    text = request.match_info["digest"]
    return bytes.fromhex(text) if _NAME.fullmatch(text) else None
