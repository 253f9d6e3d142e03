"""A producer with a valid token that writes whatever bytes it likes.

Units:  seconds.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from flowlet.ingest import GateDescription
from flowlet.ingest.runtime import producer_runtime
from netstack.errors import NetstackError
from netstack.flow.offer_book import Stage
from netstack.ids import ConnectionID, ResultPartitionID, execution_attempt_id, intermediate_partition_id
from netstack.offering_network import GateAccess, OfferedPartition
from netstack.wire.events import StopMode
from netstack.wire.offer_messages import GateIdentity, SubpartitionOffer


def push_bytes(gate: GateDescription, elements: Sequence[bytes], partition: int, timeout_s: float) -> str | None:
    """Push a partition of raw elements to every subtask; return None if it was taken, else the reason why not."""
    runtime, num = producer_runtime(), len(gate.endpoints)
    nonce = os.urandom(16)
    producer = execution_attempt_id(nonce, nonce, partition, 0)
    identity = ResultPartitionID(intermediate_partition_id(nonce, partition), producer)
    written: Any = runtime.environment.create_result_partition(f"hostile {partition}", identity, num)
    offered = OfferedPartition(written, num)
    deadline = time.monotonic() + timeout_s
    places = [
        (
            ConnectionID(each.host, each.port),
            SubpartitionOffer(
                nonce, identity, subtask, num, gate.producers or 0, "hostile", 0, partition, 0, gate.fingerprint
            ),
        )
        for subtask, each in enumerate(gate.endpoints)
    ]
    access = GateAccess(GateIdentity(bytes.fromhex(gate.job_id), gate.name, gate.expires_ms), gate.token)
    try:
        runtime.run(runtime.offering.offer(access, places, offered, timeout_s))
        _wait(offered, Stage.REQUESTED, deadline)
        for element in elements:
            for subtask in range(num):
                written.emit_record(element, subtask)
        written.flush_all()
        written.notify_end_of_data(StopMode.DRAIN)
        _wait(offered, Stage.PROCESSED, deadline)
        written.finish()
        written.close()
        _wait(offered, Stage.ENDED, deadline)
    except (NetstackError, TimeoutError) as error:
        with suppress(NetstackError):
            offered.abort(error)
        written.close()
        cause = offered.failure
        return f"{type(error).__name__}: {error if cause is None else cause}"
    finally:
        with suppress(NetstackError):
            runtime.loop.execute_threadsafe(offered.withdraw)
    return None


def _wait(offered: OfferedPartition, stage: Stage, deadline: float) -> None:
    if not offered.wait_for(stage, max(0.0, deadline - time.monotonic())):
        raise TimeoutError(f"no answer at stage {stage.name}")
