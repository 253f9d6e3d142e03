"""The effect of a stop signal before an event loop handles it; with real processes:
``tests/flowlet/cli/test_interrupted_commands.py``.
"""

import os
import signal
from typing import Any

import pytest

from flowlet.rpc.early_signals import STOP_SIGNALS, end_at_signals


class Ended(Exception):
    pass


def test_the_process_ends_also_where_nobody_reads_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []

    def write(*_: Any) -> int:
        raise BrokenPipeError

    def end(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "_exit", end)
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        end_at_signals("program")
        for number in STOP_SIGNALS:
            handler = signal.getsignal(number)
            assert callable(handler)
            with pytest.raises(Ended):
                handler(number, None)
    finally:
        for number, former in before.items():
            signal.signal(number, former)

    assert codes == [0] * len(STOP_SIGNALS)
