"""Plans follow from their seeds, and all kinds of faults are drawn."""

from collections import Counter

from tests.chaos.chaos_plan import RUNS_PER_CLUSTER, FaultKind, Harm, cluster_of, plan_cluster, plan_faults, plan_run


def test_one_seed_gives_one_plan() -> None:
    assert [plan_run(seed) for seed in range(50)] == [plan_run(seed) for seed in range(50)]
    assert len({str(plan_run(seed).options) for seed in range(50)}) > 20


def test_every_run_has_at_least_two_faults_and_all_kinds_are_drawn() -> None:
    plans = [plan_run(seed) for seed in range(2000)]

    assert all(len(plan.faults) >= 2 for plan in plans)
    assert {fault.kind for plan in plans for fault in plan.faults} == set(FaultKind)
    assert len(FaultKind) >= 10


def test_every_mode_back_end_and_segment_size_is_drawn() -> None:
    plans = [str(plan_run(seed)) for seed in range(200)]
    words = Counter(part for plan in plans for part in plan.split(", "))

    assert {
        "aligned",
        "unaligned",
        "unaligned after a time",
        "hashmap",
        "rocksdb",
        "incremental",
        "tolerant",
        "strict",
    } <= words.keys()
    assert {plan_cluster(number).segment_bytes for number in range(50)} == {256, 512, 1024, 4096}


def test_a_fault_does_not_depend_on_which_others_can_be_drawn() -> None:
    """A seed that failed stays a test when kinds of faults are added."""
    plan = plan_run(3)

    again = plan_faults(3, [fault.kind for fault in plan.faults])

    assert again == plan


def test_without_a_small_disk_it_is_not_filled() -> None:
    assert all(
        fault.kind is not FaultKind.DISK_FULL
        for seed in range(200)
        for fault in plan_run(seed, has_small_disk=False).faults
    )


def test_a_link_fault_says_where_it_strikes() -> None:
    plan = plan_faults(1, list(FaultKind))

    assert all((fault.link is None) is (fault.kind.link_fault is None) for fault in plan.faults)
    assert FaultKind.CONTROL_CUT.is_on_control
    assert not FaultKind.DATA_CUT.is_on_control
    assert FaultKind.DATA_DELAY.harm is Harm.NONE


def test_runs_share_a_cluster_by_their_seeds() -> None:
    assert {cluster_of(seed) for seed in range(RUNS_PER_CLUSTER)} == {0}
    assert cluster_of(RUNS_PER_CLUSTER) == 1
