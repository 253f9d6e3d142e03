"""Promises of ``SlotSharingGroup``."""

import pytest

from flowlet.datastream import MemorySize, SlotSharingGroup, StreamExecutionEnvironment
from flowlet.errors import JobGraphError


def test_groups_of_one_name_are_equal() -> None:
    group = SlotSharingGroup.builder("heavy").build()

    assert group.get_name() == "heavy"
    assert group == SlotSharingGroup.builder("heavy").build()
    assert hash(group) == hash(SlotSharingGroup.builder("heavy").build())
    assert group != SlotSharingGroup.builder("light").build()


@pytest.mark.parametrize("name", ["", None, 7])
def test_a_group_has_a_name(name: str) -> None:
    with pytest.raises(JobGraphError, match="name of a slot sharing group is a text that is not empty, got"):
        SlotSharingGroup.builder(name).build()


def test_resources_can_be_asked_for_and_make_groups_differ() -> None:
    builder = (
        SlotSharingGroup.builder("heavy")
        .set_cpu_cores(2)
        .set_task_heap_memory_mb(64)
        .set_task_off_heap_memory(MemorySize(1))
    )
    group = builder.set_managed_memory_mb(0).set_external_resource("gpu", 0.5).build()

    assert group.get_cpu_cores() == 2.0
    assert group.get_task_heap_memory() == MemorySize.of_mebi_bytes(64)
    assert group.get_task_off_heap_memory() == MemorySize(1)
    assert group.get_managed_memory() == MemorySize(0)
    assert group.get_external_resources() == {"gpu": 0.5}
    assert group != SlotSharingGroup.builder("heavy").build()
    assert len({group, builder.build()}) == 1


def test_a_group_with_some_resources_needs_cores_and_memory() -> None:
    with pytest.raises(
        JobGraphError, match=r"'heavy' has resources, so it needs set_cpu_cores\(\) and set_task_heap_memory\(\)"
    ):
        SlotSharingGroup.builder("heavy").set_cpu_cores(1.0).build()
    with pytest.raises(JobGraphError, match="cpu_cores of a slot sharing group must be a number of more than 0, got 0"):
        SlotSharingGroup.builder("heavy").set_cpu_cores(0)
    with pytest.raises(JobGraphError, match="task_heap_memory of a slot sharing group must be more than 0"):
        SlotSharingGroup.builder("heavy").set_task_heap_memory_mb(0)
    with pytest.raises(JobGraphError, match="managed_memory of a slot sharing group must be a MemorySize, got 1"):
        SlotSharingGroup.builder("heavy").set_managed_memory(1)  # type: ignore[arg-type]
    with pytest.raises(JobGraphError, match="the name of a resource is a text"):
        SlotSharingGroup.builder("heavy").set_external_resource("", 1)


def test_whoever_uses_resources_is_told_that_slots_are_all_alike() -> None:
    group = SlotSharingGroup.builder("heavy").set_cpu_cores(1.0).set_task_heap_memory_mb(1).build()
    environment = StreamExecutionEnvironment()

    with pytest.warns(
        UserWarning, match="the resources of slot sharing group 'heavy' have no effect: all slots are alike"
    ):
        environment.register_slot_sharing_group(group)
    with pytest.warns(UserWarning, match="have no effect"):
        environment.from_collection([1]).map(abs).slot_sharing_group(group)
