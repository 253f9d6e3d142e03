"""``NetstackConfig``: checked when it is made."""

import math
import re
from typing import Any

import pytest

from netstack.config import NetstackConfig, is_debug
from netstack.errors import ConfigError


def test_the_watermarks_follow_the_segment_size() -> None:
    """Flink 1.10: high = 2 segments, low = 1 segment."""
    config = NetstackConfig(segment_size_bytes=1024, network_memory_bytes=10 * 1024)

    assert (config.low_watermark_bytes, config.high_watermark_bytes, config.num_segments) == (1024, 2048, 10)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"segment_size_bytes": 255}, "segment_size_bytes is 255, the least is 256"),
        ({"network_memory_bytes": 32767}, "less than one segment"),
        ({"exclusive_buffers_per_channel": -1}, "exclusive_buffers_per_channel is -1"),
        ({"max_connections": 0}, "max_connections is 0"),
        ({"max_producers_per_gate": 0}, "max_producers_per_gate is 0"),
        ({"max_producer_memory_percent": 101}, "max_producer_memory_percent is 101, the most is 100"),
        ({"dead_peer_timeout_s": 0}, "dead_peer_timeout_s is 0"),
        ({"dead_peer_timeout_s": math.nan}, "dead_peer_timeout_s is nan"),
        ({"dead_peer_timeout_s": math.inf}, "dead_peer_timeout_s is inf"),
        ({"heartbeat_interval_s": 0.05}, "heartbeat_interval_s is 0.05, expected 0.1 to 86400"),
        ({"heartbeat_interval_s": 86401.0, "heartbeat_timeout_s": 1e6}, "heartbeat_interval_s is 86401.0"),
        (
            {"heartbeat_timeout_s": 19.9},
            "heartbeat_timeout_s is 19.9, it must be finite and at least twice the heartbeat_interval_s of 10",
        ),
        ({"heartbeat_timeout_s": math.nan}, "heartbeat_timeout_s is nan"),
        ({"max_gather_bytes": 0}, "max_gather_bytes is 0"),
        ({"max_write_batch_bytes": 0}, "max_write_batch_bytes is 0"),
        ({"read_buffer_bytes": 8}, "read_buffer_bytes is 8, the least is 9"),
        ({"backlog": -1}, "backlog is -1"),
        ({"compression": "zip"}, "compression is 'zip', known are None and 'lz4'"),
        ({"close_timeout_s": -1.0}, "close_timeout_s is -1.0"),
        ({"connect_timeout_s": math.nan}, "connect_timeout_s is nan"),
        ({"partition_request_timeout_s": -1}, "partition_request_timeout_s is -1"),
        ({"partition_request_timeout_s": 0}, "partition_request_timeout_s is 0, the least is 0.001"),
        (
            {"congestion_control": ""},
            "congestion_control is '', expected the kernel's name of one, such as 'cubic' (1 to 15 ASCII",
        ),
        ({"congestion_control": "r\u00e9no"}, "congestion_control is 'r\u00e9no'"),
        ({"congestion_control": "cubic\0"}, r"congestion_control is 'cubic\x00'"),
        ({"congestion_control": "sixteen-letters-"}, "congestion_control is 'sixteen-letters-'"),
        ({"request_buffers_timeout_s": math.inf}, "request_buffers_timeout_s is inf"),
    ],
)
def test_impossible_values_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    """The message names the option and the bound."""
    with pytest.raises(ConfigError, match=re.escape(text)):
        NetstackConfig(**options)


def test_debug_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the exact value 1 switches the checks on."""
    monkeypatch.setenv("NETSTACK_DEBUG", "1")
    assert is_debug()

    monkeypatch.setenv("NETSTACK_DEBUG", "0")
    assert not is_debug()
