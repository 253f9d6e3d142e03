"""``GateDescription``: the address and type of a remote gate, and a token for it.

Side:       shared.  Any thread; but opening the blobs imports modules, so do that on no loop.
Invariants: a description can be pickled and sent to the processes that push.  It holds the token of this one gate, and
            no secret; ``repr`` shows neither token nor blobs.
Units:      milliseconds since the epoch.
"""

import base64
from dataclasses import field
from typing import Any

from flowlet.common.typeinfo import TypeInformation
from flowlet.graph.partitioner import Partitioner, Rebalance
from flowlet.serde.deploy_blobs import load_gate_partitioner, load_type
from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class GateEndpoint:
    """The data port of the TaskManager that runs one subtask of the gate."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class GateDescription:
    """One remote gate of one running job.

    ``endpoints`` has one entry per subtask.  ``producers``: how many partitions end the gate; None: ``finish_gate``
    ends it.
    ``has_checkpoints``: its job takes some, so a partition goes on after a failure.  ``acknowledges_checkpointed``: a
        write returns when
    one holds it.
    """

    name: str
    jobmanager: str
    job_id: str
    job_name: str
    type_name: str
    fingerprint: bytes
    endpoints: tuple[GateEndpoint, ...]
    producers: int | None
    expires_ms: int
    token: bytes = field(repr=False)
    type_blob: bytes = field(repr=False)
    key_blob: bytes = field(repr=False)
    has_checkpoints: bool = False
    acknowledges_checkpointed: bool = False

    @property
    def type_info(self) -> TypeInformation:
        """The type of the gate's records.  Raises DeploymentError: it needs a module that is missing here."""
        return load_type(self.type_blob, self.name)

    @property
    def partitioner(self) -> Partitioner:
        """How records are routed to the gate's subtasks: by key, or in turn.

        Raises:
            DeploymentError: the key selector needs a module that is missing here.
        """
        return load_gate_partitioner(self.key_blob, self.name) if self.key_blob else Rebalance()

    @property
    def is_keyed(self) -> bool:
        """Whether records are routed by key."""
        return bool(self.key_blob)

    def __str__(self) -> str:
        return f"gate {self.name!r} of job {self.job_name!r} at JobManager {self.jobmanager}"

    @classmethod
    def of_document(cls, document: dict[str, Any], jobmanager: str) -> "GateDescription":
        """The description in the JobManager's answer to ``GET /gates/{name}``."""
        return cls(
            name=document["name"],
            jobmanager=jobmanager,
            job_id=document["job_id"],
            job_name=document["job_name"],
            type_name=document["type"],
            fingerprint=bytes.fromhex(document["fingerprint"]),
            endpoints=tuple(GateEndpoint(each["host"], each["port"]) for each in document["endpoints"]),
            producers=document["producers"],
            expires_ms=document["expires_ms"],
            token=bytes.fromhex(document["token"]),
            type_blob=base64.b64decode(document["type_blob"]),
            key_blob=base64.b64decode(document["key_blob"]),
            has_checkpoints=document["has_checkpoints"],
            acknowledges_checkpointed=document["acknowledges_checkpointed"],
        )
