"""``BadRecordError``: a writer that takes many records at once says which of them it cannot write.

Side: pure.
"""

from typing import Any

from flowlet.errors import FlowletError


class BadRecordError(FlowletError):
    """Raised ``from`` what is wrong with the record; the sink's operator makes a UserFunctionError of it, which shows
    the record.
    """

    def __init__(self, record: Any) -> None:
        super().__init__("a record cannot be written")
        self.record = record
