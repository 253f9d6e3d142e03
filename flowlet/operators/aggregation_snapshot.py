"""What a keyed aggregation puts into a checkpoint.

Side: pure.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from flowlet.columns import Columns
from flowlet.columns.table import try_concatenate
from flowlet.keys.key_columns import exact_key_groups
from netstack.late import dataclass


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

    is_by_key: ClassVar[bool] = True  # see state_assignment
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

    def of_key_groups(self, groups: range, max_parallelism: int) -> "AggregationSnapshot":
        """The part with the keys of these groups, in the same order."""
        found = exact_key_groups(self.keys, max_parallelism)
        rows = np.flatnonzero((found >= groups.start) & (found < groups.stop))
        places = rows.tolist()
        return AggregationSnapshot(
            self.form,
            tuple([self.keys[each] for each in places]),
            tuple([self.values[each] for each in places]) if self.columns is None else (),
            None if self.columns is None else self.columns.take(rows),
            self.has_timestamps,
        )


def merged(snapshots: Sequence[AggregationSnapshot]) -> AggregationSnapshot | None:
    """One snapshot of keys that are in one of these each; None: there are no keys."""
    filled = [each for each in snapshots if each.keys]
    if not filled:
        return None
    keys = tuple([key for each in filled for key in each.keys])
    has_timestamps = any(each.has_timestamps for each in filled)
    forms = {each.form for each in filled}
    tables = [each.columns for each in filled if each.columns is not None]
    if forms == {StateForm.COLUMNS}:
        columns = try_concatenate(tables)
        if columns is not None:
            return AggregationSnapshot(StateForm.COLUMNS, keys, (), columns, has_timestamps)
    elif len(forms) == 1:
        values = tuple([value for each in filled for value in each.values])
        return AggregationSnapshot(forms.pop(), keys, values, None, has_timestamps)
    records = tuple([record for each in filled for record in each.records()])
    return AggregationSnapshot(StateForm.RECORDS, keys, records, None, has_timestamps)
