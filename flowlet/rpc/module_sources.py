"""The modules of a program on their way: one file of the job.

Side:   pure.
Rules:  the same modules make the same bytes, so that they travel to a cluster once.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

MODULES_FILE: Final = "modules"  # the name of that file


class ModuleSource(msgspec.Struct, frozen=True):
    """A module of the user's program; ``path`` is where it lies on the client's machine, for tracebacks."""

    path: str
    source: bytes
    is_package: bool = False


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(dict[str, ModuleSource])


def pack_modules(modules: Mapping[str, ModuleSource]) -> bytes:
    """The file, from modules by their full names."""
    return _encoder.encode({name: modules[name] for name in sorted(modules)})


def unpack_modules(content: bytes) -> dict[str, ModuleSource]:
    """The modules by their full names.  Raises ``msgspec.DecodeError``: this is no such file."""
    return _decoder.decode(content)
