"""The gates of one process that producers outside the cluster may offer partitions to.

Side:       shared.  Tasks add gates and close them; the loop thread brings offers.
Invariants: a gate is found from ``add`` to its close.
Lock order: ``_lock`` is a leaf: gates are called outside it.
"""

import threading

from netstack.errors import LocalProtocolError
from netstack.gate.channels.partition_request_client import OfferedPartitionClient
from netstack.gate.offered_input_gate import OfferedInputGate
from netstack.wire.gate_access import GateIdentity
from netstack.wire.offer_messages import PartitionOffer, RefusalCode


class OfferedGates:
    """By job, name and subtask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gates: dict[tuple[bytes, str, int], OfferedInputGate] = {}  # Guarded by _lock.

    def __repr__(self) -> str:
        return f"<OfferedGates {len(self._gates)}>"

    def add(self, job_id: bytes, subtask: int, gate: OfferedInputGate) -> None:
        """Let producers find ``gate``.

        Raises:
            LocalProtocolError: that subtask of the gate is here already.
        """
        key = (job_id, gate.shape.name, subtask)
        with self._lock:
            is_new = key not in self._gates
            if is_new:
                self._gates[key] = gate
        if not is_new:
            raise LocalProtocolError(
                f"subtask {subtask} of gate {gate.shape.name!r} of job {job_id.hex()} is here already"
            )
        gate.on_closed = lambda: self._forget(key)

    def take_offer(self, identity: GateIdentity, offer: PartitionOffer, client: OfferedPartitionClient) -> None:
        """Hand an offer to its gate; loop thread."""
        with self._lock:
            gate = self._gates.get((identity.job_id, identity.name, offer.subtask))
        if gate is None:
            # The token is good, so there was such a gate.
            client.refuse(
                offer,
                RefusalCode.GATE_ENDED,
                f"{identity} is not here (any more): its job has ended, or that subtask of it",
            )
            return
        gate.take_offer(offer, client)

    def _forget(self, key: tuple[bytes, str, int]) -> None:
        with self._lock:
            self._gates.pop(key, None)
