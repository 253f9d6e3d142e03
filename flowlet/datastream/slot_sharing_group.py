"""``SlotSharingGroup``: operators that may share slots; ``MemorySize``.

Side:   pure.
Rules:  all slots of a cluster are alike, so the resources of a group choose no slot; a warning tells this to the user
        of such a group.
Source: PyFlink ``pyflink.datastream.slot_sharing_group``.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, Self

from flowlet.common.checks import check_kind, check_name, check_number
from flowlet.common.not_yet import java_only
from flowlet.common.written_values import MemorySize
from flowlet.errors import JobGraphError
from netstack.late import dataclass

__all__ = ["MemorySize", "SlotSharingGroup"]

_NONE: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class SlotSharingGroup:
    """A named group; made by ``SlotSharingGroup.builder(name).build()``."""

    name: str
    cpu_cores: float | None = None
    task_heap_memory: MemorySize | None = None
    task_off_heap_memory: MemorySize | None = None
    managed_memory: MemorySize | None = None
    external_resources: Mapping[str, float] = field(default_factory=lambda: _NONE)

    get_java_slot_sharing_group = java_only("get_name()")

    def __post_init__(self) -> None:
        check_name(self.name, "the name of a slot sharing group is a text that is not empty")

    def __hash__(self) -> int:
        return hash(self.name)

    def get_name(self) -> str:
        """The name of the group."""
        return self.name

    def get_cpu_cores(self) -> float | None:
        """The cores that its slots would need; None: it has no resources."""
        return self.cpu_cores

    def get_task_heap_memory(self) -> MemorySize | None:
        """The memory for objects that its slots would need; None: it has no resources."""
        return self.task_heap_memory

    def get_task_off_heap_memory(self) -> MemorySize | None:
        """The other memory of functions that its slots would need; None: none, or it has no resources."""
        return self.task_off_heap_memory

    def get_managed_memory(self) -> MemorySize | None:
        """The memory for state that its slots would need; None: none, or it has no resources."""
        return self.managed_memory

    def get_external_resources(self) -> dict[str, float]:
        """Further resources by name, such as a number of GPUs."""
        return dict(self.external_resources)

    def warn_of_resources(self, stacklevel: int = 3) -> None:
        """Warn the caller who uses the group that its resources choose no slot; not in PyFlink."""
        if self.cpu_cores is not None:
            warnings.warn(
                f"the resources of slot sharing group {self.name!r} have no effect: all slots are alike; start "
                "TaskManagers of the size that its operators need",
                stacklevel=stacklevel,
            )

    @staticmethod
    def builder(name: str) -> "SlotSharingGroup.Builder":
        """A builder of a group of that name."""
        return SlotSharingGroup.Builder(name)

    class Builder:
        """Builds a ``SlotSharingGroup``; every setter raises JobGraphError if its value is out of range."""

        def __init__(self, name: str) -> None:
            self._name = name
            self._cpu_cores: float | None = None
            self._sizes: dict[str, MemorySize] = {}
            self._external: dict[str, float] = {}

        def set_cpu_cores(self, cpu_cores: float) -> Self:
            """Set the cores; more than 0."""
            self._cpu_cores = _positive(cpu_cores, "cpu_cores")
            return self

        def set_task_heap_memory(self, task_heap_memory: MemorySize) -> Self:
            """Set the memory for objects; more than 0."""
            if task_heap_memory == MemorySize(0):
                raise JobGraphError("task_heap_memory of a slot sharing group must be more than 0")
            return self._with("task_heap_memory", task_heap_memory)

        def set_task_heap_memory_mb(self, task_heap_memory_mb: int) -> Self:
            """Set the memory for objects in units of 1024^2 bytes; more than 0."""
            return self.set_task_heap_memory(_of_mb(task_heap_memory_mb, "task_heap_memory_mb"))

        def set_task_off_heap_memory(self, task_off_heap_memory: MemorySize) -> Self:
            """Set the other memory of functions."""
            return self._with("task_off_heap_memory", task_off_heap_memory)

        def set_task_off_heap_memory_mb(self, task_off_heap_memory_mb: int) -> Self:
            """Set the other memory of functions in units of 1024^2 bytes."""
            return self.set_task_off_heap_memory(_of_mb(task_off_heap_memory_mb, "task_off_heap_memory_mb"))

        def set_managed_memory(self, managed_memory: MemorySize) -> Self:
            """Set the memory for state."""
            return self._with("managed_memory", managed_memory)

        def set_managed_memory_mb(self, managed_memory_mb: int) -> Self:
            """Set the memory for state in units of 1024^2 bytes."""
            return self.set_managed_memory(_of_mb(managed_memory_mb, "managed_memory_mb"))

        def set_external_resource(self, name: str, value: float) -> Self:
            """Set how much of another resource, such as a number of GPUs; more than 0."""
            check_name(name, "the name of a resource is a text that is not empty")
            self._external[name] = _positive(value, f"resource {name!r}")
            return self

        def build(self) -> "SlotSharingGroup":
            """Build the group.

            Raises:
                JobGraphError: the name is empty; or resources are set, but not both the cores and the memory for
                    objects.
            """
            has_any = self._cpu_cores is not None or self._sizes or self._external
            if has_any and (self._cpu_cores is None or "task_heap_memory" not in self._sizes):
                raise JobGraphError(
                    f"slot sharing group {self._name!r} has resources, so it needs set_cpu_cores() and "
                    "set_task_heap_memory()"
                )
            return SlotSharingGroup(
                self._name, self._cpu_cores, **self._sizes, external_resources=MappingProxyType(dict(self._external))
            )

        def _with(self, name: str, size: MemorySize) -> Self:
            check_kind(size, MemorySize, f"{name} of a slot sharing group must be a MemorySize")
            self._sizes[name] = size
            return self


def _positive(given: object, name: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        raise JobGraphError(f"{name} of a slot sharing group must be a number of more than 0, got {given!r}")
    return float(given)


def _of_mb(given: Any, name: str) -> MemorySize:
    check_number(given, 0, f"{name} of a slot sharing group must be a whole number of 0 or more")
    return MemorySize.of_mebi_bytes(given)
