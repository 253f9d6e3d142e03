"""Logging as a user's program has it when it starts: unconfigured, whatever other tests did before."""

import logging
from collections.abc import Iterator

import pytest
import structlog

_LOGGERS = ("flowlet", "netstack", "aiohttp")


@pytest.fixture(autouse=True)
def unconfigured_logging() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
