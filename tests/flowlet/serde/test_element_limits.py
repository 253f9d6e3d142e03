import pytest

from flowlet.errors import ConfigError
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS, ElementLimits


def test_by_default_64_mib_are_taken_and_5_mib_of_them_in_memory() -> None:
    assert ElementLimits(64 * 1024 * 1024, 5 * 1024 * 1024, None) == DEFAULT_ELEMENT_LIMITS


@pytest.mark.parametrize("limit", [0, -1, 2**31])
def test_an_element_has_at_least_one_byte_and_a_length_of_31_bits(limit: int) -> None:
    assert ElementLimits(max_element_bytes=2**31 - 1).max_element_bytes == 2**31 - 1
    with pytest.raises(ConfigError, match=f"max_element_bytes is {limit}, allowed are 1 to 2147483647"):
        ElementLimits(max_element_bytes=limit)


def test_files_are_for_elements_above_100_kib() -> None:
    """A file costs more than 100 KiB of memory, as in Flink."""
    assert ElementLimits(spill_above_bytes=102_400).spill_above_bytes == 102_400
    with pytest.raises(ConfigError, match="spill_above_bytes is 102399, allowed are 102400 and more"):
        ElementLimits(spill_above_bytes=102_399)
