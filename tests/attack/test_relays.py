"""A relay between two processes that know the secret may end their connection, and do nothing else.

Control port: an attacker holds the port of a JobManager that is gone, and passes a TaskManager's signed handshake on to
    another one.
Data port: the attacker passes Hello and Proof on.  And a router that sits on the right address.
"""

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from flowlet.client.executor import to_message
from flowlet.graph.job_graph import JobGraph
from flowlet.ingest import GateClient, GateEndpoint, GateError, PartitionOffer
from flowlet.jm.scheduler import DeploymentPlan, attempt_id
from flowlet.messages.control_messages import Registered, RegisterTaskManager, TaskDeploymentDescriptor
from flowlet.operators.process_operator import MapOperator
from flowlet.sinks.function_sink import DiscardSink
from netstack.wire.message_bytes import MAGIC, encode
from netstack.wire.messages import CloseRequest, ErrorCode, ErrorResponse
from tests.attack.arena import Arena
from tests.attack.tcp_proxy import Direction, TcpProxy
from tests.attack.test_hostile_producers import TYPES, victim
from tests.attack.test_links import through_proxies
from tests.flowlet.client.jobs import source, vertex

DECIDED_S = 15.0
IS_ROUTED: Final = True
GOOD, EVIL = "a good word", "an evil one"


def websocket_frame(message: object) -> bytes:
    """Return the message in a frame as a server sends it: whole, binary, not masked."""
    data = msgspec.msgpack.encode(message)
    length = (
        bytes([len(data)]) if len(data) < 126 else b"\x7e" + len(data).to_bytes(2, "big") if len(data) < 65536 else b""
    )
    assert length, "long enough for everything here"
    return b"\x82" + length + data


def touches(file: str) -> Callable[[Any], Any]:
    def touch(value: Any) -> Any:
        Path(file).touch()
        return value

    return touch


def deployment(proof: Path) -> TaskDeploymentDescriptor:
    """Return the deployment of a task that writes a file."""
    head = vertex("forged", source([1]), MapOperator(touches(str(proof)), name="map"), DiscardSink())
    job = to_message(JobGraph("forged", vertices=[head], edges=[]))
    place = RegisterTaskManager("forged", 1, "127.0.0.1", 1, 1)
    return DeploymentPlan(job, {attempt_id(job.job_id, head.id, 0): place}).describe_task(head.id, 0)


@pytest.mark.parametrize("is_at_right_address", [False, True], ids=["relay", "router"])
def test_control_port(arena: Arena, is_at_right_address: bool) -> None:
    """Pass the handshake on, then inject a deployment into the WebSocket."""
    proof = arena.folder / f"forged {is_at_right_address}"
    injected = websocket_frame(Registered("the attacker", 1000)) + websocket_frame(deployment(proof))
    name = (
        "a router before the control port injects a deployment"
        if is_at_right_address
        else "a relay on another control port injects a deployment"
    )
    with TcpProxy(arena.control_port) as relay, arena.attack(name) as it:
        state = {"is_open": False, "is_done": False}

        def change(direction: Direction, data: bytes) -> bytes:
            if direction == "to client" and b" 101 " in data[:20]:
                state["is_open"] = True
            elif direction == "to client" and state["is_open"] and not state["is_done"]:
                state["is_done"] = True  # behind the first message of the real JobManager
                return data + injected
            return data

        relay.change = change
        routes = arena.folder / "routes"
        if is_at_right_address:
            routes.write_text(f"{arena.control_port} {relay.port}\n", encoding="ascii")
        process = arena.start_task_manager(jobmanager=None if is_at_right_address else f"127.0.0.1:{relay.port}")
        deadline = time.monotonic() + DECIDED_S
        try:
            while (
                time.monotonic() < deadline
                and not proof.exists()
                and process.is_running
                and not refusal_in(process.stderr)
            ):
                time.sleep(0.05)
            ran, text = proof.exists(), process.stderr
            state_text = "ended" if not process.is_running else "runs"
        finally:
            routes.unlink(missing_ok=True)
            process.close()
        assert not ran, "the injected task ran in the TaskManager"
        assert "the attacker" not in text, "the TaskManager accepted an injected Registered"
        it.outcome(f"refused; the TaskManager {state_text}: {refusal_in(text)!r:.90}")
        assert refusal_in(text), f"no reason in the log: {text[-1000:]}"


def refusal_in(text: str) -> str:
    found = re.search(
        r'(?i)[^"{}]*(authenticat|tampered|signature|another address|not signed|does not fit|proof|seal|mac )[^"{}]*',
        text,
    )
    return found[0] if found else ""


@pytest.mark.parametrize("is_at_right_address", [False, True], ids=["relay", "router"])
def test_data_port(arena: Arena, is_at_right_address: bool) -> None:
    """Pass the handshake of a producer on, then change its messages."""
    good, evil = GOOD.encode(), EVIL.encode()
    assert len(good) == len(evil)
    type_info, ordinary, _ = TYPES["pair"]
    name = (
        "a router before the data port changes records"
        if is_at_right_address
        else "a relay on another data port changes records"
    )
    with arena.attack(name) as it, victim(arena, type_info, ordinary) as job, through_proxies(arena, "data") as relays:
        if not is_at_right_address:
            (arena.folder / "routes").write_text("", encoding="ascii")
        for relay in relays:
            relay.change = lambda _direction, data: data.replace(good, evil)
        ports = {each.data_port: relay.port for each, relay in zip(arena.task_managers, relays, strict=True)}
        description = job.description
        if not is_at_right_address:
            description = replace(
                description,
                endpoints=tuple(GateEndpoint(each.host, ports[each.port]) for each in description.endpoints),
            )
        error = push_words(description)
        assert any(relay.num_connections for relay in relays), "the relay was used"
        time.sleep(0.2)
        assert (EVIL, 1) not in job.seen, (
            f"the job got a record that the relay had changed; the producer was told: {error}"
        )
        assert error is not None, "the partition counts as complete, but its records were changed"
        it.outcome(f"refused: {error[:100]}")


def push_words(description: Any) -> str | None:
    try:
        with GateClient(description, timeout_s=DECIDED_S).open_partition(PartitionOffer("relayed", 0)) as writer:
            writer.write_records([(GOOD, 1)] * 10)
            writer.finish(DECIDED_S)
    except GateError as error:
        return f"{type(error).__name__}: {error}"
    return None


def test_injected_frames(arena: Arena) -> None:
    """Add a frame of the relay's own, which a producer must not believe."""
    type_info, ordinary, _ = TYPES["pair"]
    forged = encode(ErrorResponse(ErrorCode.PRODUCER_FAILED, "forged by the attacker", None))
    with arena.attack("a router before the data port injects frames") as it, victim(arena, type_info, ordinary) as job:
        with through_proxies(arena, "data") as relays:
            magic = MAGIC.to_bytes(4, "big")
            for relay in relays:
                counts = {"frames": 0}

                def change(direction: Direction, data: bytes, counts: dict[str, int] = counts) -> bytes:
                    if direction == "to client":
                        counts["frames"] += data.count(magic)
                        if counts["frames"] > 3:  # Hello, Proof, Ready are through
                            return data + forged + encode(CloseRequest())
                    return data

                relay.change = change
            error = push_words(job.description)
        it.outcome(f"told: {error}"[:140])
        assert error is None or "forged by the attacker" not in error, f"the producer believes the relay: {error}"
