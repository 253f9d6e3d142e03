"""Connections that stand still, lie or break: a job goes on with right counts, or fails with a reason in time; it is
never silently wrong.

The bystander is the victim: its connections go through a proxy.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import pytest

from tests.attack.arena import Arena, within
from tests.attack.tcp_proxy import Change, Direction, OnceAfter, TcpProxy

TOLD_S: Final = (
    # A client's own data connections miss heartbeats after 60 s; from the fault to the failure of the job, or its going
    # on.
    90.0
)
# Either end of a control connection is lost after 8 s here; the client waits for an answer for 50 s.
CONTROL_TOLD_S: Final = 75.0
TOLD: Final = (
    r"(?i)lost|connection|corrupt|broken|heartbeat|silent|answer|in "
    r"time|authenticat|refused|ended|failed|could not be read"
)
Where = Literal["data", "control"]
BIG_S: Final = 1.5
IS_ROUTED: Final = True


@contextmanager
def through_proxies(arena: Arena, where: Where) -> Iterator[list[TcpProxy]]:
    """Let new connections to the data ports of all TaskManagers, or to the JobManager, go through a proxy each."""
    ports = [arena.control_port] if where == "control" else [each.data_port for each in arena.task_managers]
    routes = arena.folder / "routes"
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(port)) for port in ports]
        routes.write_text(
            "".join(f"{port} {proxy.port}\n" for port, proxy in zip(ports, proxies, strict=True)), encoding="ascii"
        )
        stack.callback(routes.unlink)
        yield proxies


@dataclass(frozen=True)
class Fault:
    """A fault of every proxied connection; ``must_go_on``: the job may not fail."""

    name: str
    begin: Callable[[TcpProxy], None]
    must_go_on: bool = False
    lasts_s: float | None = None  # then it is over


def _hold(direction: Direction) -> Callable[[TcpProxy], None]:
    return lambda proxy: proxy.hold.add(direction)


def _swallow(direction: Direction) -> Callable[[TcpProxy], None]:
    return lambda proxy: proxy.swallow.add(direction)


def _change(direction: Direction, change: Callable[[bytes], bytes]) -> Callable[[TcpProxy], None]:
    def begin(proxy: TcpProxy) -> None:
        once: Change = OnceAfter(direction, 0, change)
        proxy.change = once

    return begin


def flip(place: float) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        at = min(len(data) - 1, int(place * len(data)))
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]

    return change


def _delay(proxy: TcpProxy) -> None:
    proxy.delay_s = 0.3


FAULTS: Final = [
    *(Fault(f"stands still {direction}", _hold(direction)) for direction in ("to server", "to client")),
    *(
        Fault(f"stands still {direction} for a moment", _hold(direction), True, 3.0)
        for direction in ("to server", "to client")
    ),
    *(Fault(f"swallows all {direction}", _swallow(direction)) for direction in ("to server", "to client")),
    *(
        Fault(f"swallows 0.2 s {direction}", _swallow(direction), False, 0.2)
        for direction in ("to server", "to client")
    ),
    Fault("is cut", lambda proxy: proxy.cut()),
    Fault("is reset", lambda proxy: proxy.cut(is_reset=True)),
    Fault("delays 0.3 s", _delay, True),
    *(
        Fault(f"flips a bit at {place:.0%} {direction}", _change(direction, flip(place)))
        for direction in ("to server", "to client")
        for place in (0.1, 0.5, 0.9)
    ),
    *(
        Fault(f"{name} {direction}", _change(direction, change))
        for direction in ("to server", "to client")
        for name, change in {
            "doubles bytes": lambda data: data + data,
            "doubles half": lambda data: data + data[len(data) // 2 :],
            "loses half": lambda data: data[: len(data) // 2],
            "inserts bytes": lambda data: data[:40] + b"\x00" * 100 + data[40:],
        }.items()
    ),
]


def break_links(arena: Arena, where: Where, fault: Fault) -> None:
    """Run the bystander through proxies, and break all of them at once."""
    may_fail = "" if fault.must_go_on else TOLD
    with through_proxies(arena, where) as proxies:
        if where == "control":
            arena.replace_task_managers([each.process.pid for each in arena.task_managers])
        with arena.attack(
            f"{where} link {fault.name}", may_fail=may_fail, end_s=TOLD_S if where == "data" else CONTROL_TOLD_S
        ) as it:
            assert it.bystander is not None
            began_s = time.monotonic()
            for proxy in proxies:
                fault.begin(proxy)
            if fault.lasts_s is not None:
                time.sleep(fault.lasts_s)
                _heal(proxies)
            changes = [proxy.change for proxy in proxies if isinstance(proxy.change, OnceAfter)]
            if changes:  # a job does not use every link in both directions all the time
                within(
                    BIG_S * 10,
                    lambda: any(change.has_happened for change in changes),
                    "no bytes passed that could be changed",
                )
                _heal(proxies)
            told_s = it.bystander.wait_failed(patience_s(where, fault))
            it.outcome("went on" if told_s is None else f"told after {time.monotonic() - began_s:.1f} s")
            it.release = lambda: _heal(proxies)


def patience_s(where: Where, fault: Fault) -> float:
    """How long the bystander is watched before it is told to end; then it may fail, too."""
    if fault.lasts_s or fault.must_go_on:
        return BIG_S
    if where == "data":
        return 4.0
    return CONTROL_TOLD_S if fault.name.endswith("to client") else 12.0


def _heal(proxies: list[TcpProxy]) -> None:
    for proxy in proxies:
        proxy.hold.clear()
        proxy.swallow.clear()
        proxy.delay_s = 0.0
        proxy.change = None  # of a direction in which nothing came: it would hit the new job


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_data_link(arena: Arena, fault: Fault) -> None:
    break_links(arena, "data", fault)
