"""What a keyed aggregation puts into a checkpoint.

Side: pure.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from flowlet.columns import Columns


class StateForm(Enum):
    """What a keyed aggregation keeps for each key."""

    COLUMNS = "columns"  # a row of columns
    SUMS = "sums"  # the second field of a pair, of which the key is the first one
    PAIRS = "pairs"  # a tuple of two fields
    TUPLES = "tuples"  # a tuple
    RECORDS = "records"  # any record


@dataclass(frozen=True, slots=True)
class AggregationSnapshot:
    """The state of a keyed aggregation, version 1; nobody changes it.

    Whoever changes a field raises ``STATE_VERSION`` of ``KeyedAggregationOperator``.

    Args:
        form: what the values are.
        keys: exact keys (``flowlet.keys.exact_keys``), in the order in which they were first seen.
        values: for each key, unless the form is COLUMNS.
        columns: a row for each key, if the form is COLUMNS.
        has_timestamps: whether a record had one.
    """

    form: StateForm
    keys: tuple[Any, ...]
    values: tuple[Any, ...] = ()
    columns: Columns | None = None
    has_timestamps: bool = False

    def records(self) -> list[Any]:
        """A record for each key, in a list of the caller's own."""
        if self.columns is not None:
            return self.columns.to_list()
        return list(zip(self.keys, self.values, strict=True)) if self.form is StateForm.SUMS else list(self.values)
