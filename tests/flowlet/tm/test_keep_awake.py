"""A thread of the lowest class, busy while the block lasts."""

import hashlib
import os
import threading

import pytest

from flowlet.tm.keep_awake import KeepAwake
from tests.waiting import PATIENCE_S


def test_it_is_busy_in_the_lowest_class_until_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, str]] = []
    has_worked_twice = threading.Event()

    def work(*_: object) -> None:
        found.append((os.sched_getscheduler(threading.get_native_id()), threading.current_thread().name))
        if len(found) >= 2:
            has_worked_twice.set()

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", work)
    before = os.sched_getscheduler(0)

    with KeepAwake() as keeper:
        assert has_worked_twice.wait(PATIENCE_S)
        assert repr(keeper) == "<KeepAwake on>"

    assert repr(keeper) == "<KeepAwake off>"
    assert set(found) == {(os.SCHED_IDLE, "keep awake")}
    assert os.sched_getscheduler(0) == before
