"""The part of the REST interface for shipped files: ``POST /files/missing``, ``PUT /files/:digest``, ``GET
/files/:digest``.

Side:       loop.
Rules:      digests are SHA-256, in hex in a path.  Lists of them are MessagePack.  As every request, these are signed
            with the secret.
"""

import hashlib
import re
from typing import Final

import msgspec

from flowlet.errors import StorageError
from flowlet.jm.shipped.file_keeper import FileKeeper, FilesFullError
from flowlet.rpc.requests import MSGPACK, Request, Response, Route, error_response
from flowlet.rpc.shipped_files import PART_BYTES

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_decoder: Final = msgspec.msgpack.Decoder(list[bytes])


class FileApi:
    """The handlers.  Threading: the JobManager's loop."""

    def __init__(self, keeper: FileKeeper) -> None:
        self._keeper = keeper

    def __repr__(self) -> str:
        return f"<FileApi of {self._keeper!r}>"

    def routes(self) -> list[Route]:
        """All routes."""
        return [
            Route("POST", "/files/missing", self.missing),
            Route("PUT", "/files/{digest}", self.put),
            Route("GET", "/files/{digest}", self.get),
        ]

    async def missing(self, request: Request) -> Response:
        """Which of the parts named in the body are not here."""
        try:
            # no wait: the check of its signature has read it
            missing = await self._keeper.missing(_decoder.decode(await request.read()))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return error_response(400, f"the body is no list of digests: {error}")
        except StorageError as error:
            return error_response(503, str(error))
        return Response(body=msgspec.msgpack.encode(missing), content_type=MSGPACK)

    async def put(self, request: Request) -> Response:
        """Keep a part: 201; 400 it is not what its name says; 503 there is no room."""
        digest, content = _digest_of(request), await request.read()  # no wait: the check of its signature has read it
        if digest is None or len(content) > PART_BYTES or hashlib.sha256(content).digest() != digest:
            return error_response(400, f"a part has at most {PART_BYTES} bytes, and is named by their SHA-256")
        try:
            await self._keeper.put(digest, content)
        except (FilesFullError, StorageError) as error:
            return error_response(503, str(error))
        return Response(status=201)

    async def get(self, request: Request) -> Response:
        """A part; 404 it is not here."""
        digest = _digest_of(request)
        try:
            # waits for the disk; ended by its answer, or by the TaskManager, who waits for so long
            content = None if digest is None else await self._keeper.read(digest)
        except StorageError as error:
            return error_response(503, str(error))
        if content is None:
            return error_response(404, "there is no such part of a shipped file")
        return Response(body=content, content_type="application/octet-stream")


def _digest_of(request: Request) -> bytes | None:
    text = request.match_info["digest"]
    return bytes.fromhex(text) if _DIGEST.fullmatch(text) else None
