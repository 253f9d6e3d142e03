"""A TaskManager that dies gets a successor soon, one that cannot live gets none in the end."""

from flowlet.client.child_supervisor import RespawnPolicy


def test_delays_double_and_the_sixth_death_within_a_minute_is_the_last() -> None:
    policy = RespawnPolicy()

    delays = [policy.child_died(now_s) for now_s in (0.0, 1.0, 2.0, 3.0, 4.0, 59.0)]

    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, None]
    assert policy.describe_limit() == "6 TaskManagers died within 60 s, so no more are started"


def test_deaths_are_forgotten_after_a_minute() -> None:
    policy = RespawnPolicy()
    for now_s in range(5):
        policy.child_died(float(now_s))

    assert policy.child_died(60.0) == 1.6  # the first of them is forgotten
    assert policy.child_died(1000.0) == 0.1


def test_one_death_a_minute_never_ends_it() -> None:
    policy = RespawnPolicy()

    assert {policy.child_died(60.0 * minute) for minute in range(100)} == {0.1}
