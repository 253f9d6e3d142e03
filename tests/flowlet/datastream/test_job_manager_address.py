"""Promises about where a job runs."""

import pytest

from flowlet.common import Configuration
from flowlet.datastream.environment.job_manager_address import is_in_process, job_manager_address
from flowlet.errors import ConfigError

ELSEWHERE = {"FLOWLET_JOBMANAGER": "elsewhere:1"}


@pytest.mark.parametrize(
    ("options", "variables", "address"),
    [
        ({}, {}, None),
        ({}, {"FLOWLET_JOBMANAGER": " "}, None),
        ({}, ELSEWHERE, ("elsewhere", 1)),
        ({}, {"FLOWLET_JOBMANAGER": "http://127.0.0.1:8081/"}, ("127.0.0.1", 8081)),
        ({}, {"FLOWLET_JOBMANAGER": "[::1]:8081"}, ("::1", 8081)),
        ({"flowlet.jobmanager": "here:65535"}, ELSEWHERE, ("here", 65535)),
        ({"rest.address": "here", "rest.port": "9"}, ELSEWHERE, ("here", 9)),
        ({"rest.address": "here"}, {}, ("here", 8081)),
        ({"jobmanager.rpc.address": "there"}, {}, ("there", 8081)),
        ({"rest.address": "here", "jobmanager.rpc.address": "there"}, {}, ("here", 8081)),
        ({"flowlet.jobmanager": "own:2", "rest.address": "here"}, {}, ("own", 2)),
    ],
)
def test_options_of_the_program_beat_variables(options: dict[str, str], variables: dict[str, str], address: tuple[str, int] | None) -> None:
    assert job_manager_address(Configuration.from_dict(options), variables) == address


@pytest.mark.parametrize(
    ("options", "variables", "message"),
    [
        (
            {},
            {"FLOWLET_JOBMANAGER": "host"},
            r"environment variable FLOWLET_JOBMANAGER is 'host'; it must be host:port, such as 127\.0\.0\.1:8081",
        ),
        ({}, {"FLOWLET_JOBMANAGER": "host:"}, "must be host:port"),
        ({}, {"FLOWLET_JOBMANAGER": "host:x"}, "must be host:port"),
        ({}, {"FLOWLET_JOBMANAGER": "host:²"}, "must be host:port"),
        ({}, {"FLOWLET_JOBMANAGER": ":1"}, "environment variable FLOWLET_JOBMANAGER: '' and 1 are no host and port"),
        ({"flowlet.jobmanager": "host:0"}, {}, "option 'flowlet.jobmanager': 'host' and 0 are no host and port"),
        ({"flowlet.jobmanager": ""}, {}, "option 'flowlet.jobmanager' is ''"),
        ({"rest.address": "here", "rest.port": "65536"}, {}, "options 'rest.address' and 'rest.port': 'here' and 65536"),
        ({"rest.address": "here", "rest.port": "x"}, {}, "option 'rest.port' is 'x', which is not a whole number"),
        ({"rest.address": " "}, {}, "option 'rest.address' is ' ', which is not a host"),
        ({"rest.address": "here", "rest.port": "0"}, {}, "option 'rest.port' is '0', which is not a whole number of 1 or more"),
        ({"rest.port": "9"}, ELSEWHERE, "option 'rest.port' is set and has no effect: set 'rest.address', too"),
    ],
)
def test_what_is_no_address_is_refused_by_its_name(options: dict[str, str], variables: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        job_manager_address(Configuration.from_dict(options), variables)


def test_an_embedded_cluster_stays_in_process_when_told_so() -> None:
    assert not is_in_process({})
    assert not is_in_process({"FLOWLET_LOCAL": ""})
    assert is_in_process({"FLOWLET_LOCAL": "InProcess"})
    with pytest.raises(ConfigError, match="FLOWLET_LOCAL is 'threads'; unset it, or set it to 'inprocess'"):
        is_in_process({"FLOWLET_LOCAL": "threads"})
