"""``filter``.

Hot path.  Per record one call of the user's function (bench: programs).

Side:   task.
Source: Flink ``StreamFilter``.
"""

from typing import Any

from flowlet.chain.loop_code import Blame, LoopCode
from flowlet.operators.keyed_operator import StatefulRecordOperator


class FilterOperator(StatefulRecordOperator):
    """Only the records for which the function is true.

    Args:
        function: a callable, or an object with ``filter(value)``.
        key_selector: of the keyed stream that it reads, for keyed state; None for a stream without keys.
        name: for people.
    """

    def __init__(self, function: Any, key_selector: Any = None, *, name: str = "Filter") -> None:
        super().__init__(name, key_selector)
        self.function = self._add(function, "filter")

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Go on with the record, or leave it."""
        self._write_key(code, record, key)
        with code.block(
            f"if {code.bind(self.function.call, 'filter')}({record}):", Blame(self.name, self.ctx.subtask, record)
        ):
            self.out.write(code, record, timestamp)
