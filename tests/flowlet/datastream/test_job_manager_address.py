"""Promises about where a job runs."""

from pathlib import Path

import pytest

from flowlet.common import Configuration
from flowlet.common.written_values import parse_address
from flowlet.datastream.stream_execution_environment import is_in_process, job_manager_address
from flowlet.errors import ConfigError
from flowlet.ingest import close_producers, open_gate
from flowlet.ingest.description import GateUnreachableError
from tests.flowlet.ingest.conftest import write_secret

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
def test_options_of_the_program_beat_variables(
    options: dict[str, str], variables: dict[str, str], address: tuple[str, int] | None
) -> None:
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
        ({}, {"FLOWLET_JOBMANAGER": ":1"}, "FLOWLET_JOBMANAGER is ':1': '' and 1 are no host and port"),
        (
            {"flowlet.jobmanager": "host:0"},
            {},
            "option 'flowlet.jobmanager' is 'host:0': 'host' and 0 are no host and port",
        ),
        ({"flowlet.jobmanager": ""}, {}, "option 'flowlet.jobmanager' is ''"),
        (
            {"rest.address": "here", "rest.port": "65536"},
            {},
            "options 'rest.address' and 'rest.port': 'here' and 65536",
        ),
        ({"rest.address": "here", "rest.port": "x"}, {}, "option 'rest.port' is 'x', which is not a whole number"),
        ({"rest.address": " "}, {}, "option 'rest.address' is ' ', which is not a host"),
        (
            {"rest.address": "here", "rest.port": "0"},
            {},
            "option 'rest.port' is '0', which is not a whole number of 1 or more",
        ),
        ({"rest.port": "9"}, ELSEWHERE, "option 'rest.port' is set and has no effect: set 'rest.address', too"),
    ],
)
def test_what_is_no_address_is_refused_by_its_name(
    options: dict[str, str], variables: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        job_manager_address(Configuration.from_dict(options), variables)


def test_an_embedded_cluster_stays_in_process_when_told_so() -> None:
    assert not is_in_process({})
    assert not is_in_process({"FLOWLET_LOCAL": ""})
    assert is_in_process({"FLOWLET_LOCAL": "InProcess"})
    with pytest.raises(ConfigError, match="FLOWLET_LOCAL is 'threads'; unset it, or set it to 'inprocess'"):
        is_in_process({"FLOWLET_LOCAL": "threads"})


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("https://127.0.0.1:8081", "speaks no https; give host:port"),
        ("ftp://host:21", "speaks no ftp; give host:port"),
        ("user@host:8081", "are no host and port"),
        ("host/path:8081", "are no host and port"),
        ("::1:8081x", "must be host:port"),
        ("a b:8081", "are no host and port"),
        ("1:2:3:8081", "are no host and port"),
        ("host:٨٠٨١", "must be host:port"),
    ],
)
def test_what_is_no_address_is_named_and_never_dialled(tmp_path: Path, address: str, message: str) -> None:
    """Options, variables, commands and gates have one rule, which knows URLs."""
    with pytest.raises(ConfigError, match=message) as caught:
        parse_address(address, "--jobmanager")

    assert repr(address) in str(caught.value) or address.rpartition(":")[0] in str(caught.value)
    assert "--jobmanager" in str(caught.value)
    with pytest.raises(ConfigError, match=message):
        job_manager_address(Configuration.from_dict({}), {"FLOWLET_JOBMANAGER": address})
    with pytest.raises(GateUnreachableError, match=message):
        open_gate("clicks", jobmanager=address, secret_file=write_secret(bytes(32), tmp_path))
    close_producers()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://localhost:1/", ("localhost", 1)),
        ("[::1]:80", ("::1", 80)),
        (" jm.internal:8081 ", ("jm.internal", 8081)),
    ],
)
def test_addresses_as_people_write_them(address: str, expected: tuple[str, int]) -> None:
    assert parse_address(address, "--jobmanager") == expected
