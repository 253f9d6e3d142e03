"""Contenders in turns."""

from bench.jobs.pipeline import Run
from bench.rounds import MAX_WARM_UPS, Contender, compare, is_rising, warm_up


class Scripted:
    """Runs with given rates; the last one for ever."""

    def __init__(self, log: list[str], name: str, *rates: float) -> None:
        self._log, self._name, self._rates = log, name, list(rates)

    def __call__(self) -> Run:
        self._log.append(self._name)
        rate = self._rates.pop(0) if len(self._rates) > 1 else self._rates[0]
        return Run(rate, 1 / rate, foreign_cores=rate / 1000)


def test_warming_up_goes_on_while_one_of_the_last_two_runs_was_clearly_quicker() -> None:
    assert is_rising([])
    assert is_rising([10.0, 11.0])
    assert is_rising([10.0, 11.0, 9.0])
    assert not is_rising([10.0, 10.2, 9.0])
    assert not is_rising([10.0, 20.0, 20.5, 20.1])


def test_warming_up_ends_even_if_the_rate_never_stops_rising() -> None:
    contender = Contender("peer", Scripted([], "peer", *(2.0**number for number in range(40))), warms_up=True)

    assert len(warm_up(contender)) == MAX_WARM_UPS


def test_every_round_runs_everybody_once_and_ratios_are_taken_within_a_round() -> None:
    log: list[str] = []
    ours = Contender("ours", Scripted(log, "ours", 10.0, 40.0))
    peer = Contender("peer", Scripted(log, "peer", 5.0, 10.0), is_peer=True, versions={"peer": "1"})

    results = compare([ours, peer], 2, "things/s")

    assert sorted(log[:2]) == sorted(log[2:]) == ["ours", "peer"]
    assert [result.name for result in results] == ["ours", "peer", "ours / peer"]
    assert [list(result.runs) for result in results] == [[10.0, 40.0], [5.0, 10.0], [2.0, 4.0]]
    assert results[0].foreign_cores == [0.01, 0.04]
    assert results[2].foreign_cores == [0.01, 0.04]
    assert results[2].unit == "x"
    assert results[2].versions == {"peer": "1"}


def test_what_warms_up_is_not_counted() -> None:
    peer = Contender("peer", Scripted([], "peer", 1.0, 2.0, 2.0, 2.0), is_peer=True, warms_up=True)

    (figure,) = compare([peer], 1, "things/s")

    assert figure.runs == [2.0]
    assert figure.details["warm_up_rates"] == [1.0, 2.0, 2.0, 2.0]
