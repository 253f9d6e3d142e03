"""The tokens of gates: each is good for one gate only."""

from dataclasses import replace

import pytest

from netstack.errors import LocalProtocolError
from netstack.wire.offer_messages import GateIdentity, gate_token

GATE = GateIdentity(b"J" * 16, "clicks", 9)


def test_every_gate_job_time_and_secret_has_its_own_token() -> None:
    others = [replace(GATE, job_id=b"K" * 16), replace(GATE, name="click"), replace(GATE, expires_ms=10)]
    tokens = {gate_token(bytes(32), each) for each in (GATE, *others)} | {gate_token(b"s" * 32, GATE)}

    assert len(tokens) == 5
    assert {len(token) for token in tokens} == {32}
    assert gate_token(bytes(32), GATE) == gate_token(bytes(32), replace(GATE))


@pytest.mark.parametrize(
    "change", [{"job_id": b"J"}, {"name": ""}, {"name": "é" * 128}, {"expires_ms": -1}, {"expires_ms": 2**63}]
)
def test_what_is_no_gate_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError):
        replace(GATE, **change)  # type: ignore[arg-type]  # one field each
