"""Shared files: none that a checkpoint needs is given out as unused, in any order of what happens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.checkpoint.jobmanager.checkpoint_history import SharedStateRegistry


def test_a_file_goes_when_no_kept_checkpoint_names_it() -> None:
    registry = SharedStateRegistry()
    registry.name(1, ["a", "b"])
    registry.name(2, ["b", "c"])

    assert registry.take_unused(1) == []
    assert registry.take_unused(2) == ["a"]
    assert registry.paths == {"b", "c"}
    registry.clear()
    assert registry.paths == frozenset()


def test_files_of_an_aborted_checkpoint_go_with_the_next_one_that_is_complete() -> None:
    registry = SharedStateRegistry()
    registry.name(1, ["a"])
    registry.name(2, ["a", "aborted"])
    registry.name(3, ["a"])

    assert registry.take_unused(3) == ["aborted"]


def test_a_late_acknowledgement_of_an_old_checkpoint_shortens_no_life() -> None:
    registry = SharedStateRegistry()
    registry.name(3, ["a"])
    registry.name(2, ["a"])

    assert registry.take_unused(3) == []


@pytest.mark.slow
@settings(max_examples=300)
@given(data=st.data(), num_retained=st.integers(1, 3))
def test_no_checkpoint_that_is_kept_or_can_still_be_complete_lacks_a_file(
    *, data: st.DataObject, num_retained: int
) -> None:
    """A task whose files only come and go for good; two checkpoints are under way, and acknowledge, complete and abort
    in any order.
    """
    registry = SharedStateRegistry()
    live, removed, next_file = {"f0"}, set[str](), 1
    pending: dict[int, frozenset[str]] = {}
    kept: dict[int, frozenset[str]] = {}
    next_id = 1
    for _ in range(data.draw(st.integers(0, 30))):
        action = data.draw(st.sampled_from(["write", "compact", "trigger", "acknowledge", "complete", "abort"]))
        if action == "write":
            live.add(f"f{next_file}")
            next_file += 1
        elif action == "compact" and live:
            live = {*data.draw(st.sets(st.sampled_from(sorted(live)))), f"f{next_file}"}
            next_file += 1
        elif action == "trigger" and len(pending) < 2:
            pending[next_id] = frozenset(live)
            assert not removed & live, "it may write them again"
            next_id += 1
        elif pending and action in ("acknowledge", "complete", "abort"):
            chosen = data.draw(st.sampled_from(sorted(pending)))
            if action != "abort":
                registry.name(chosen, pending[chosen])
            if action == "abort":
                del pending[chosen]
            if action == "complete":
                kept[chosen] = pending.pop(chosen)
                pending = {each: files for each, files in pending.items() if each > chosen}
                kept = dict(sorted(kept.items())[-num_retained:])
                removed |= set(registry.take_unused(min(kept)))
        needed = {file for files in [*kept.values(), *pending.values()] for file in files}
        assert not removed & needed
