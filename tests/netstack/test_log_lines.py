"""Log lines go where the program wants them; nothing is printed on standard output."""

import logging
import subprocess
import sys

import pytest
import structlog

from netstack.log_lines import LogLines

LOG = LogLines("netstack.test")


def test_without_any_configuration_a_warning_is_on_standard_error_alone() -> None:
    """A process of its own, since pytest has configured the standard library's loggers."""
    program = (
        "from netstack.log_lines import LogLines; log = LogLines('x'); log.info('unseen'); log.warning('it is "
        "late', peer='p', n=3)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("", "it is late peer='p' n=3\n")


def test_the_standard_librarys_logger_of_the_module_gets_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "netstack.test"):
        LOG.debug("started")
        try:
            raise ZeroDivisionError
        except ZeroDivisionError as error:
            LOG.warning("it failed", exc_info=error)
            LOG.exception("it failed again", where="here")

    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("netstack.test", "DEBUG", "started"),
        ("netstack.test", "WARNING", "it failed"),
        ("netstack.test", "ERROR", "it failed again where='here'"),
    ]
    assert [record.exc_info is not None for record in caplog.records] == [False, True, True]


def test_a_program_that_configured_structlog_gets_events_and_values() -> None:
    structlog.configure()
    with structlog.testing.capture_logs() as lines:
        LOG.error("it failed", peer="p")
        LOG.exception("again")
    assert lines == [
        {"event": "it failed", "peer": "p", "log_level": "error"},
        {"event": "again", "exc_info": True, "log_level": "error"},
    ]
