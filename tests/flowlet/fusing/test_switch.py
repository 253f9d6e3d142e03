import sys
from types import FrameType
from typing import Any

import pytest

from flowlet.fusing.switch import FUSE_VARIABLE, is_fusing, is_traced


@pytest.mark.parametrize(("value", "expected"), [("0", False), (" 0 ", False), ("1", True), ("", True), (None, True)])
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="comprehensions have no frames of their own")
def test_zero_switches_fusing_off(value: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else does."""
    monkeypatch.delenv(FUSE_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(FUSE_VARIABLE, value)

    assert is_fusing() is expected


def test_a_trace_function_of_this_thread_is_noticed() -> None:
    def trace(_frame: FrameType, _event: str, _argument: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(None)
    try:
        without = is_traced()
        sys.settrace(trace)
        traced = is_traced()
    finally:
        sys.settrace(before)

    assert (without, traced) == (False, True)
