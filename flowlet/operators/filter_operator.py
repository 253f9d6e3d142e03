"""``filter``.

Hot path.  Per record one call of the user's function (bench: programs).

Side:   task.
Source: Flink ``StreamFilter``.
"""

from typing import Any

from flowlet.chain.loop_code import Blame, LoopCode
from flowlet.operators.user_function import RecordOperator


class FilterOperator(RecordOperator):
    """Only the records for which the function is true.

    Args:
        function: a callable, or an object with ``filter(value)``.
        name: for people.
    """

    def __init__(self, function: Any, *, name: str = "Filter") -> None:
        super().__init__(name)
        self.function = self._add(function, "filter")

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Go on with the record, or leave it."""
        with code.block(f"if {code.bind(self.function.call, 'filter')}({record}):", Blame(self.name, self.ctx.subtask, record)):
            self.out.write(code, record, timestamp)
