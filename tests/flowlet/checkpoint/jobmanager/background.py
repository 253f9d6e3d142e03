"""Calls in the background of a JobManager, which end when a test says so."""

from collections.abc import Callable
from typing import Any

from flowlet.errors import FlowletError


class Background:
    """Stands for ``call_in_background``."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, Callable[[], None]]] = []  # names and calls, not ended

    def __call__(
        self,
        function: Callable[[], Any],
        on_result: Callable[[Any], None],
        on_error: Callable[[Exception], None],
        name: str,
    ) -> None:
        def finish() -> None:
            try:
                result = function()
            except FlowletError as error:
                on_error(error)
            else:
                on_result(result)

        self.waiting.append((name, finish))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.waiting]

    def end_one(self, index: int = 0) -> None:
        self.waiting.pop(index)[1]()

    def end_all(self) -> None:
        """End all calls, and those that follow."""
        while self.waiting:
            self.end_one()
