"""Codes of keys as the bytes of a file.

Hot path, per block: copies of arrays; texts once per key.

Side:   pure.
Format: width of a code (0: numbers), width of a rank (0: a code for each record), length of the table, bytes of the
        names; then the codes, or the ranks, the table, and the names as a column of texts.  All in the byte order of
        the machine: no other one reads it.
"""

import struct
from typing import Final

import numpy as np

from flowlet.columns import NameTable
from flowlet.serde.columns import decode_texts, encode_texts
from flowlet.sorted_input.ranked_codes import RankedCodes
from flowlet.sorted_input.sort_codes import CodeArray, Codes

_HEADER: Final = struct.Struct(">IIQQ")
_NUMBER: Final = np.dtype(np.uint64)


def codes_to_bytes(codes: Codes) -> bytes:
    """The codes of at least one record."""
    if not isinstance(codes, RankedCodes):
        return b"".join((_HEADER.pack(_width_of(codes), 0, 0, 0), np.ascontiguousarray(codes).tobytes()))
    names = b"" if codes.names is None else encode_texts(codes.names.names)
    head = _HEADER.pack(_width_of(codes.table), codes.ranks.dtype.itemsize, len(codes.table), len(names))
    return b"".join((head, codes.ranks.tobytes(), codes.table.tobytes(), names))


def codes_of_bytes(data: bytes, num_rows: int) -> Codes:
    """The opposite."""
    width, rank_width, num_codes, num_bytes_of_names = _HEADER.unpack_from(data)
    dtype = np.dtype(f"S{width}") if width else _NUMBER
    if not rank_width:
        return np.frombuffer(data, dtype, num_rows, _HEADER.size)
    ranks = np.frombuffer(data, np.dtype(f"u{rank_width}"), num_rows, _HEADER.size)
    start = _HEADER.size + ranks.nbytes
    table = np.frombuffer(data, dtype, num_codes, start)
    if not num_bytes_of_names:
        return RankedCodes(ranks, table)
    texts, _ = decode_texts(memoryview(data), start + table.nbytes, num_codes)
    return RankedCodes(ranks, table, NameTable(list(texts)))


def _width_of(codes: CodeArray) -> int:
    return codes.dtype.itemsize if codes.dtype.kind == "S" else 0
