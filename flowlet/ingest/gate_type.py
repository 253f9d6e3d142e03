"""What producer and gate have to agree on about the records.

Side:   pure.
"""

import hashlib

from flowlet.common.typeinfo import TypeInformation

FINGERPRINT_BYTES = 16


def type_fingerprint(type_info: TypeInformation) -> bytes:
    """16 bytes that are the same for equal types in every process."""
    text = f"{type(type_info).__name__} {type_info!r}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=FINGERPRINT_BYTES).digest()
