"""Logging as a user's program has it when it starts: unconfigured, also after other tests."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog

_LOGGERS = ("flowlet", "netstack", "aiohttp")


@contextmanager
def _unconfigured() -> Iterator[None]:
    structlog.reset_defaults()
    level, handlers = logging.root.level, logging.root.handlers[:]
    yield
    structlog.reset_defaults()
    logging.root.setLevel(level)
    logging.root.handlers[:] = handlers
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def unconfigured_logging() -> Iterator[None]:
    with _unconfigured():
        yield


@pytest.fixture(scope="module", autouse=True)
def unconfigured_logging_of_module() -> Iterator[None]:
    """Leave logging unconfigured at the beginning of every module of tests: a cluster in the process sets it up when it
    starts.
    """
    with _unconfigured():
        yield
