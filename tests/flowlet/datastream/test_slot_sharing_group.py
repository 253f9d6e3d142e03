"""Promises of ``SlotSharingGroup``."""

import pytest

from flowlet.datastream import SlotSharingGroup
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
