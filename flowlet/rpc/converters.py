"""``converter_to``: parsed documents as structs, on any thread.

Side:       pure.
Invariants: msgspec learns the fields of a struct once, when it is first asked to decode it, and runs Python code on the
            way.  A second thread that decodes this struct meanwhile uses a half-learned one, which ends the process
            (seen with msgspec 0.22: two tasks that read their first state).  So every type is learned while its module
            is imported, by one thread (``tests/test_msgspec_types.py``).
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")


def converter_to(wanted: type[T]) -> Callable[[object], T]:
    """Make a function from parsed JSON to ``wanted``, which raises msgspec.ValidationError; call this while a module is
    imported.
    """
    msgspec.json.Decoder(wanted)  # learns the type, and those of its fields
    return lambda document: msgspec.convert(document, wanted)
