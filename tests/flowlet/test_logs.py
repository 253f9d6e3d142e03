"""Log lines: one format for structlog's and the standard library's loggers, with the task's names on them."""

import io
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from flowlet.errors import ConfigError
from flowlet.logs import bind_task, configure_embedded_logging, configure_logging
from netstack.log_lines import LogLines


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """Leave logging to every test as the test runner set it up."""
    loggers = [logging.getLogger(name) for name in ("", "flowlet", "netstack", "aiohttp")]
    before = [(logger, list(logger.handlers), logger.level, logger.propagate) for logger in loggers]
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    for logger, handlers, level, propagate in before:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def json_lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_is_one_json_object_with_event_level_logger_and_time() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)

    structlog.get_logger("flowlet.x").info("began", records=3)

    (line,) = json_lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "began", "records": 3, "level": "info", "logger": "flowlet.x"}


def test_the_standard_library_writes_the_same_lines() -> None:
    """The web library logs through ``logging``; its lines must not look different."""
    stream = io.StringIO()
    configure_logging("info", "json", stream)

    logging.getLogger("aiohttp.server").warning("bad request from %s", "somebody")

    (line,) = json_lines(stream)
    assert (line["event"], line["level"], line["logger"]) == ("bad request from somebody", "warning", "aiohttp.server")


@pytest.mark.parametrize(
    "write", [lambda: structlog.get_logger("a").info("x"), lambda: logging.getLogger("a").info("x")]
)
def test_lines_below_the_level_are_dropped(write: Any) -> None:
    stream = io.StringIO()
    configure_logging("warning", "json", stream)

    write()

    assert stream.getvalue() == ""


def test_an_exception_becomes_text_in_one_line() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)

    try:
        raise ValueError("a\nb")
    except ValueError:
        structlog.get_logger("flowlet.x").exception("failed")

    (line,) = json_lines(stream)
    assert line["exception"].startswith("Traceback (most recent call last):")
    assert line["exception"].endswith("ValueError: a\nb")


def test_what_json_does_not_know_is_shown_by_its_repr() -> None:
    """A log line must never fail because of its content."""
    stream = io.StringIO()
    configure_logging("info", "json", stream)

    structlog.get_logger("flowlet.x").info("x", value={1, 2}.__class__)

    assert json_lines(stream)[0]["value"] == "<class 'set'>"


@pytest.mark.parametrize(("stream", "is_json"), [(io.StringIO(), True), (Terminal(), False)])
def test_auto_means_console_on_a_terminal_and_json_elsewhere(stream: io.StringIO, is_json: bool) -> None:
    configure_logging("info", "auto", stream)

    structlog.get_logger("flowlet.x").info("began")

    assert stream.getvalue().startswith("{") is is_json
    assert "began" in stream.getvalue()


def test_console_without_a_terminal_has_no_colours() -> None:
    stream = io.StringIO()
    configure_logging("info", "console", stream)

    structlog.get_logger("flowlet.x").warning("began")

    assert "\x1b" not in stream.getvalue()
    assert "began" in stream.getvalue()


def test_lines_of_a_task_thread_carry_its_names_and_others_do_not() -> None:
    """The function may take either logger."""
    stream = io.StringIO()
    configure_logging("info", "json", stream)

    def run() -> None:
        bind_task("wc", "split", 1)
        structlog.get_logger("a").info("ours")
        logging.getLogger("b").info("theirs")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    structlog.get_logger("a").info("loop")

    ours, theirs, loop = json_lines(stream)
    assert [(line["job"], line["task"], line["subtask"]) for line in (ours, theirs)] == [("wc", "split", 1)] * 2
    assert "task" not in loop


def test_the_second_configuration_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logging("info", "json", first)
    configure_logging("info", "json", second)

    logging.getLogger("a").info("x")

    assert first.getvalue() == ""
    assert len(json_lines(second)) == 1


def test_standard_error_is_looked_up_for_every_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook or test runner may exchange ``sys.stderr`` after the configuration."""
    configure_logging("info", "json")
    later = io.StringIO()
    monkeypatch.setattr("sys.stderr", later)

    structlog.get_logger("a").info("x")

    assert len(json_lines(later)) == 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("level", "log_format", "wrong"), [("loud", "json", "'loud'"), ("info", "xml", "'xml'")])
def test_unknown_settings_are_named_with_what_is_allowed(level: str, log_format: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"{wrong} does not exist; choose one of"):
        configure_logging(level, log_format)


def test_an_embedded_cluster_leaves_the_users_loggers_alone() -> None:
    """The loggers of other libraries stay, and so do the program's settings for ours."""
    mine = logging.NullHandler()
    logging.getLogger("flowlet").addHandler(mine)
    loggers = [logging.getLogger(name) for name in ("", "aiohttp", "asyncio", "flowlet", "netstack")]
    before = [(list(each.handlers), each.level, each.propagate) for each in loggers]

    configure_embedded_logging()
    configure_embedded_logging()

    after = [(list(each.handlers), each.level, each.propagate) for each in loggers]
    assert after[:3] == before[:3]
    assert mine in after[3][0]
    assert [each[1:] for each in after] == [each[1:] for each in before]
    assert len(logging.getLogger("netstack").handlers) == 1
    assert not structlog.is_configured()


def test_an_embedded_cluster_writes_nothing_for_which_the_program_has_a_handler(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whenever it has set it."""
    configure_embedded_logging()
    stream = io.StringIO()
    logging.getLogger().addHandler(logging.StreamHandler(stream))

    LogLines("flowlet.x").warning("mine")

    assert stream.getvalue() == "mine\n"
    assert capsys.readouterr().err == ""


def test_an_embedded_cluster_warns_on_standard_error_and_is_silent_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # those of the test runner
    configure_embedded_logging()

    LogLines("flowlet.x").info("quiet")
    LogLines("flowlet.x").warning("loud")

    assert "quiet" not in (err := capsys.readouterr().err)
    assert err.count("loud") == 1


def test_a_users_own_structlog_is_kept() -> None:
    seen: list[str] = []

    def remember(_logger: object, _name: str, event: structlog.typing.EventDict) -> str:
        seen.append(event["event"])
        return ""

    structlog.configure(processors=[remember])

    configure_embedded_logging()
    structlog.get_logger("flowlet.x").info("mine")

    assert seen == ["mine"]
    assert not logging.getLogger("flowlet").handlers
