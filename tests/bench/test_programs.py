"""Programs on real TaskManagers; their figures mean nothing here, but their results are checked."""

import pytest

from bench import profile_parts, programs

pytestmark = pytest.mark.slow


def test_a_program_and_its_twin_give_what_the_loop_gives_on_one_and_two_taskmanagers() -> None:
    """Half of the records go over TCP; outputs are compared in every run."""
    results = programs.run(1, quick=True, only=["two_streams"])

    names = [result.name for result in results]
    for form in ("two_streams", "two_streams, twin"):
        loop = f"programs {form}, plain loop, 1 process"
        ours = [f"programs {form}, 1 TaskManager", f"programs {form}, 2 TaskManagers"]
        assert {loop, *ours, *(f"{name} / {loop}" for name in ours)} <= set(names)
    assert all(rate > 0 for result in results for rate in result.runs)


def test_the_profile_of_a_program_has_the_users_functions() -> None:
    if profile_parts.why_missing() is not None:
        pytest.skip("py-spy is not installed")
    results = programs.profiled(programs.work_of("json_dicts", "friendly", 20_000))

    parts = {result.name.rpartition(": ")[2]: result.runs[0] for result in results}
    assert parts["users' functions"] > 0
    assert all(result.unit == "ns" for result in results)
