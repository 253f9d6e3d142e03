"""A thread of the lowest class, busy while the block lasts."""

import hashlib
import os
import threading

import pytest

from flowlet.tm.latency.latency_policy import KeepAwake
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

    for thread in threading.enumerate():
        # In the lowest class it may get no time for a while, and the block does not wait for ever.
        if thread.name == "keep awake":
            thread.join(PATIENCE_S)
    assert repr(keeper) == "<KeepAwake off>"
    assert set(found) == {(os.SCHED_IDLE, "keep awake")}
    assert os.sched_getscheduler(0) == before


def test_it_rests_while_something_else_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper ends the round that it is in, and begins another one only when it may."""
    rounds = threading.Semaphore(0)
    may_end = threading.Semaphore(0)

    def work(*_: object) -> None:
        rounds.release()
        may_end.acquire()

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", work)
    with KeepAwake() as keeper:
        assert rounds.acquire(timeout=20)
        keeper.rest(is_crowded=True)
        may_end.release()
        assert not rounds.acquire(timeout=0.05)

        keeper.rest(is_crowded=False)
        assert rounds.acquire(timeout=20)
        may_end.release(10)
        monkeypatch.setattr(hashlib, "pbkdf2_hmac", lambda *_: None)
