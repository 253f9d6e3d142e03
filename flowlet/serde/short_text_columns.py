"""Encodes short ASCII texts, each padded to the same number of bytes.

Hot path: C code per column.

Side:       pure.
Format:     ``column_format``.
"""

import numpy as np

from flowlet.columns import ShortTextColumn
from flowlet.columns.short_text_column import PACKED16_BYTES, Packed16Array
from flowlet.errors import SerdeError
from flowlet.serde.column_format import SHORT_TEXTS, framed

_BLOCK_TEXTS = 64


def encode_short_texts(packed16: Packed16Array) -> bytes:
    """Encode at least one text; each takes as many bytes as the longest one."""
    # Blocks of texts side by side, because numpy's inner loops run over the last dimension: two columns alone would be
    # slow.
    whole = len(packed16) - len(packed16) % _BLOCK_TEXTS
    of_blocks = np.bitwise_or.reduce(packed16[:whole].reshape(-1, 2 * _BLOCK_TEXTS), axis=0).reshape(-1, 2)
    used = np.flatnonzero(np.bitwise_or.reduce(np.concatenate((of_blocks, packed16[whole:])), axis=0).view(np.uint8))
    width = int(used[-1]) + 1 if len(used) else 1
    cells = packed16.view(np.uint8)[:, :width]
    return framed(SHORT_TEXTS, bytes((width,)), cells.tobytes())


def decode_short_texts(payload: memoryview, num_texts: int) -> ShortTextColumn:
    """Decode ``num_texts`` texts.  Raises SerdeError: the column is corrupt."""
    width = payload[0] if payload else 0
    if not 0 < width <= PACKED16_BYTES:
        raise SerdeError(f"short texts of {width} bytes each, they have 1 to {PACKED16_BYTES}")
    # Checked before each text takes 16 bytes of memory.
    if len(payload) - 1 != num_texts * width:
        raise SerdeError(
            f"{len(payload) - 1} bytes of short texts, {num_texts} of {width} bytes each have {num_texts * width}"
        )
    cells = np.frombuffer(payload[1:], np.uint8).reshape(-1, width)
    if cells.max(initial=0) > 0x7F:
        raise SerdeError("short texts that are not ASCII")
    packed16 = np.zeros((len(cells), PACKED16_BYTES), np.uint8)
    packed16[:, :width] = cells
    return ShortTextColumn(packed16.view(np.uint64))
