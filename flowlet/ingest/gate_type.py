"""What producer and gate have to agree on about the records.

Side:   pure.
"""

import hashlib

from flowlet.common.typeinfo import (
    BasicArrayTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    ObjectArrayTypeInfo,
    PickledBytesTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
)

FINGERPRINT_BYTES = 16


def type_fingerprint(type_info: TypeInformation) -> bytes:
    """16 bytes that are the same for equal types in every process."""
    text = f"{type(type_info).__name__} {type_info!r}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=FINGERPRINT_BYTES).digest()


def holds_any_object(type_info: TypeInformation) -> bool:
    """Whether records of the type may be, or hold, objects of any class."""
    match type_info:
        case PickledBytesTypeInfo():
            return True
        case RowTypeInfo() | TupleTypeInfo():
            return any(map(holds_any_object, type_info.get_field_types()))
        case ListTypeInfo() | BasicArrayTypeInfo() | ObjectArrayTypeInfo() | PrimitiveArrayTypeInfo():
            return holds_any_object(type_info.elem_type)
        case MapTypeInfo():
            return holds_any_object(type_info.key_type_info) or holds_any_object(type_info.value_type_info)
        case _:
            return False
