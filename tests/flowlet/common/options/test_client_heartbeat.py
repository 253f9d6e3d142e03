"""Tests of ``flowlet.common.options.client_options``: which jobs need their client, as the options say."""

import pytest

from flowlet.common.configuration import Configuration
from flowlet.common.options.client_options import ClientHeartbeat
from flowlet.errors import ConfigError

ATTACHED, SHUTDOWN = "execution.attached", "execution.shutdown-on-attached-exit"
INTERVAL, TIMEOUT = "client.heartbeat.interval", "client.heartbeat.timeout"


def of(options: dict[str, str], *, is_collecting: bool = False, is_attached: bool = False) -> ClientHeartbeat | None:
    return ClientHeartbeat.of_options(
        Configuration.from_dict(options), is_collecting=is_collecting, is_attached=is_attached
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ClientHeartbeat(10_000, 60_000)),
        ({ATTACHED: "false"}, None),
        ({ATTACHED: "true"}, ClientHeartbeat(10_000, 60_000)),
        ({SHUTDOWN: "false"}, ClientHeartbeat(10_000, 60_000)),
        ({TIMEOUT: "600000"}, ClientHeartbeat(30_000, 600_000)),
        ({TIMEOUT: "9", INTERVAL: "2"}, ClientHeartbeat(2, 9)),
    ],
)
def test_a_job_whose_results_are_read_needs_its_reader(
    options: dict[str, str], expected: ClientHeartbeat | None
) -> None:
    assert of(options, is_collecting=True) == expected


@pytest.mark.parametrize(
    ("options", "is_attached", "expected"),
    [
        ({}, True, None),
        ({SHUTDOWN: "true"}, True, ClientHeartbeat(30_000, 180_000)),
        ({SHUTDOWN: "true", TIMEOUT: "3000"}, True, ClientHeartbeat(500, 3_000)),
        ({SHUTDOWN: "true", ATTACHED: "false"}, True, None),
        ({SHUTDOWN: "true"}, False, None),
        ({SHUTDOWN: "true", ATTACHED: "true"}, False, ClientHeartbeat(30_000, 180_000)),
        ({ATTACHED: "true"}, False, None),
    ],
)
def test_any_other_job_goes_on_without_it_unless_the_options_say_otherwise(
    options: dict[str, str], is_attached: bool, expected: ClientHeartbeat | None
) -> None:
    assert of(options, is_attached=is_attached) == expected


@pytest.mark.parametrize("options", [{INTERVAL: "60000"}, {TIMEOUT: "2"}, {TIMEOUT: str(2**40)}])
def test_times_that_do_not_fit_together_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"the interval is more than 0 and less than the timeout"):
        of(options, is_collecting=True)


def test_an_option_of_another_type_is_named() -> None:
    with pytest.raises(ConfigError, match=TIMEOUT):
        of({TIMEOUT: "30 s"}, is_collecting=True)
