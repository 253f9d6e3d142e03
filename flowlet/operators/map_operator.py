"""``map``.

Hot path.  Per record one call of the user's function (bench: programs).

Side:   task.
Source: Flink ``StreamMap``.  Records keep their timestamps.
"""

from typing import Any

from flowlet.chain.loop_code import Blame, LoopCode
from flowlet.operators.keyed_operator import StatefulRecordOperator


class MapOperator(StatefulRecordOperator):
    """One record for each.

    Args:
        function: a callable, or an object with ``map(value)``.
        key_selector: of the keyed stream that it reads, for keyed state; None for a stream without keys.
        name: for people.
    """

    def __init__(self, function: Any, key_selector: Any = None, *, name: str = "Map") -> None:
        super().__init__(name, key_selector)
        self.function = self._add(function, "map")

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Replace the record."""
        self._write_key(code, record, key)
        result = code.variable("v")
        code.line(
            f"{result} = {code.bind(self.function.call, 'map')}({record})", Blame(self.name, self.ctx.subtask, record)
        )
        self.out.write(code, result, timestamp, count=code.counts.get(id(self)))
