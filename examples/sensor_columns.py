"""Finds the highest temperature of each sensor in two million readings, as columns, without a Python object per row.

Each subtask makes its readings batch by batch.  A function of batches drops failed readings and converts Fahrenheit to
Celsius; the rest is built in.  ``emit="batch"``: one row per sensor and batch instead of one per reading.

Run it: ``python examples/sensor_columns.py``.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from flowlet.datastream import StreamExecutionEnvironment

NUM_READINGS = 2_000_000
BATCH_ROWS = 50_000
SENSORS = pa.array([f"sensor-{number}" for number in range(8)])
READINGS = pa.schema([("sensor", pa.string()), ("fahrenheit", pa.float64())])
TEMPERATURES = pa.schema([("sensor", pa.string()), ("celsius", pa.float64())])


def readings(subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
    """Yield the readings of one subtask; every thousandth failed, and is null."""
    rng = np.random.default_rng(subtask)
    for _ in range(NUM_READINGS // parallelism // BATCH_ROWS):
        sensors = rng.integers(0, len(SENSORS), BATCH_ROWS)
        values = 50 + 5 * sensors + rng.random(BATCH_ROWS)
        failed = rng.random(BATCH_ROWS) < 0.001
        yield pa.record_batch([SENSORS.take(pa.array(sensors)), pa.array(values, mask=failed)], schema=READINGS)


def to_celsius(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert the readings to Celsius, without the failed ones."""
    valid = batch.filter(pc.is_valid(batch.column("fahrenheit")))
    celsius = pc.divide(pc.subtract(valid.column("fahrenheit"), 32), 1.8)
    return pa.record_batch([valid.column("sensor"), celsius], schema=TEMPERATURES)


def main() -> None:
    """Run the job, and print each sensor's highest temperature."""
    env = StreamExecutionEnvironment.get_execution_environment()
    highest = (
        env.from_arrow(readings, READINGS)
        .map_batches(to_celsius, TEMPERATURES)
        .key_by("sensor")
        .max("celsius", emit="batch")
    )

    temperatures: dict[str, float] = {}
    for row in highest.execute_and_collect("Highest temperatures"):
        temperatures[row["sensor"]] = row["celsius"]  # results are running: the last one is the highest

    table = Table("sensor", "highest temperature")
    for sensor, celsius in sorted(temperatures.items()):
        table.add_row(sensor, f"{celsius:.1f} °C")
    Console().print(table)


if __name__ == "__main__":
    main()
