"""``ThroughputCalculator``, ``BufferSizeEMA``, ``BufferDebloater``: Flink's golden values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.buffer_debloater import BufferDebloater
from netstack.buffer.buffer_size_ema import BufferSizeEMA
from netstack.buffer.throughput_calculator import ThroughputCalculator


class TestThroughput:
    """Bytes per second of the busy time."""

    def test_bytes_over_time(self) -> None:
        """ThroughputCalculatorTest: 10,000 bytes in 100 ms are 100,000 bytes per second."""
        calculator = ThroughputCalculator()
        calculator.add_bytes(6666, 0)
        calculator.add_bytes(3333, 1)
        calculator.add_bytes(1, 34)

        assert calculator.calculate(100) == 100_000

    def test_every_call_starts_anew_and_no_time_says_the_same_again(self) -> None:
        """ThroughputCalculatorTest: the value after a calculation; without new time the old one is repeated."""
        calculator = ThroughputCalculator()
        calculator.add_bytes(666, 0)

        assert [calculator.calculate(100), calculator.calculate(100), calculator.calculate(101)] == [6660, 6660, 0]

    def test_idle_time_does_not_count(self) -> None:
        """ThroughputCalculatorTest: 10 bytes in 2 busy ms, whatever lies between."""
        calculator = ThroughputCalculator()
        calculator.add_bytes(7, 0)
        calculator.pause(1)
        calculator.add_bytes(3, 10)

        assert calculator.calculate(11) == 5000

    def test_a_calculation_in_idle_time_counts_the_busy_time_before(self) -> None:
        """ThroughputCalculatorTest: paused at 1 ms, asked at 10 ms; pausing twice is pausing once."""
        calculator = ThroughputCalculator()
        calculator.add_bytes(10, 0)
        calculator.pause(1)
        calculator.pause(5)

        assert calculator.calculate(10) == 10_000

    def test_resuming_what_runs_changes_nothing(self) -> None:
        """ThroughputCalculatorTest: several ends of idle time, no start."""
        calculator = ThroughputCalculator()
        calculator.add_bytes(10, 0)
        for now in (3, 6, 9):
            calculator.resume(now)

        assert calculator.calculate(10) == 1000

    def test_a_resumed_measurement_counts_without_bytes(self) -> None:
        """Waiting for a slow sender is no idle time once it was resumed."""
        calculator = ThroughputCalculator()
        calculator.add_bytes(10, 0)
        calculator.pause(0)
        calculator.resume(10)

        assert calculator.calculate(20) == 1000


class TestAverage:
    """The moving average of the wanted size."""

    def test_it_falls_and_rises_at_the_same_pace(self) -> None:
        """BufferSizeEMATest: the golden walk of 3 samples between 10 and 200."""
        average = BufferSizeEMA(200, 10, 3)

        down = [average.calculate(111, 13)]
        down += [average.calculate(107, 7) for _ in range(5)]
        down += [average.calculate(107, 13) for _ in range(3)]
        up = [average.calculate(333, 1) for _ in range(6)]

        assert down == [104, 60, 38, 26, 21, 18, 13, 11, 10]
        assert up == [15, 23, 34, 51, 76, 114]

    def test_it_stays_within_its_bounds(self) -> None:
        """BufferSizeEMATest: neither more than the maximum nor less than the minimum."""
        average = BufferSizeEMA(200, 10, 3)

        up = [average.calculate(0, 1), *(average.calculate(1000, 1) for _ in range(3))]
        average = BufferSizeEMA(200, 10, 3)
        down = [average.calculate(0, 1) for _ in range(6)]

        assert (up, down) == ([100, 150, 200, 200], [100, 50, 25, 13, 10, 10])

    def test_a_small_size_grows_even_with_many_samples(self) -> None:
        """BufferSizeEMATest: rounding does not hold it where it is."""
        average = BufferSizeEMA(32 * 1024, 16, 10_000, starting_bytes=16)
        for _ in range(10_000):
            average.calculate(20_000, 10)

        assert average.calculate(10_000, 10) > 16

    @pytest.mark.parametrize(("total", "num_buffers"), [(-1, 1), (1, 0)])
    def test_senseless_samples_are_refused(self, total: int, num_buffers: int) -> None:
        """BufferSizeEMATest: a negative size, no buffers."""
        with pytest.raises(ValueError, match="bytes in"):
            BufferSizeEMA(200, 100, 2).calculate(total, num_buffers)


def make_debloater(target_ms: int, min_bytes: int, max_bytes: int, threshold_percent: int = 25) -> BufferDebloater:
    return BufferDebloater(
        max_bytes=max_bytes, min_bytes=min_bytes, target_ms=target_ms, threshold_percent=threshold_percent, num_samples=1
    )


class TestDebloater:
    """Which sizes are announced."""

    @pytest.mark.parametrize(
        ("target_ms", "bounds", "num_buffers", "throughput", "expected"),
        [
            pytest.param(1000, (50, 2400), 0, 1200, 1200, id="no buffers count as one"),
            pytest.param(1200, (50, 1100), 16, 3333, 250, id="desired total shared by the buffers"),
            pytest.param(1200, (250, 1100), 16, 3333, 250, id="not less than the minimum"),
            pytest.param(1200, (50, 1100), 16, 0, 50, id="no throughput"),
            pytest.param(7, (50, 1100), 16, 3333, 50, id="a very short target"),
            pytest.param(1200, (50, 248), 16, 3333, None, id="more than the maximum, which it is already"),
            pytest.param(1200, (50, 250), 16, 3333, None, id="hardly less than now"),
        ],
    )
    def test_golden_values(self, target_ms: int, bounds: tuple[int, int], num_buffers: int, throughput: int, expected: int | None) -> None:
        """BufferDebloaterTest: one sample, from the maximum on."""
        debloater = make_debloater(target_ms, *bounds)

        assert debloater.recalculate(throughput, num_buffers) == expected
        assert debloater.last_buffer_size_bytes == (expected if expected is not None else bounds[1])

    def test_the_greatest_size_is_announced_although_it_is_close(self) -> None:
        """BufferDebloaterTest: 500, 1000, then the maximum of 1100, once."""
        debloater = make_debloater(1000, 50, 1100)

        announced = [debloater.recalculate(throughput, 1) for throughput in (500, 1000, 2000, 2000)]

        assert announced == [500, 1000, 1100, None]

    def test_the_least_size_is_announced_although_it_is_close(self) -> None:
        """BufferDebloaterTest: 60, 60 again, then the minimum of 50, once."""
        debloater = make_debloater(1000, 50, 1100)

        announced = [debloater.recalculate(throughput, 1) for throughput in (60, 60, 40, 40)]

        assert announced == [60, None, 50, None]

    def test_what_is_close_enough_is_not_announced(self) -> None:
        """BufferDebloaterTest: less than 30 % up or down; the bounds and what is beyond them are told."""
        debloater = make_debloater(1000, 256, 32768, threshold_percent=30)
        size = 16384
        assert debloater.recalculate(size, 1) == size
        delta = int(size * 0.3)

        close = [debloater.is_close_to_last(size + change) for change in (0, -1, 1, 1 - delta, delta - 1)]
        far = [debloater.is_close_to_last(other) for other in (size - delta, size + delta, 257, 256, 32767, 32768, 32769, 255)]

        assert (all(close), any(far)) == (True, False)

    def test_gauges_tell_size_and_time_to_consume(self) -> None:
        """``debloatedBufferSize`` and ``estimatedTimeToConsumeBuffersMs``; producers may begin with less than the maximum."""
        debloater = BufferDebloater(max_bytes=32768, starting_bytes=1024, num_samples=1)
        before = debloater.last_buffer_size_bytes

        assert debloater.recalculate(8192, 4) == 2048
        assert (before, debloater.last_buffer_size_bytes, debloater.estimated_time_to_consume_buffers_ms) == (1024, 2048, 1000)

    @given(samples=st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 5000)), max_size=30))
    def test_sizes_stay_within_the_bounds(self, samples: list[tuple[int, int]]) -> None:
        """Whatever was measured."""
        debloater = BufferDebloater(max_bytes=32768, starting_bytes=1024)

        for throughput, num_buffers in samples:
            announced = debloater.recalculate(throughput, num_buffers)
            assert announced is None or 256 <= announced <= 32768
            assert 256 <= debloater.last_buffer_size_bytes <= 32768
