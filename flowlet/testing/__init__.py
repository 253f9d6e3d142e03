"""Tools with which users test their jobs.

A single operator or function: ``OneInputOperatorHarness``, ``TwoInputOperatorHarness`` and their keyed variants, with a
manual clock and without threads.  A whole job: ``MiniCluster``.  Code that uses mails or timers directly:
``MailboxHarness`` and the manual clocks.
"""

from flowlet.testing.harness_environment import MailboxHarness, ProcessResources, SubtaskPlace
from flowlet.testing.input_harnesses import (
    KeyedOneInputOperatorHarness,
    KeyedTwoInputOperatorHarness,
    OneInputOperatorHarness,
    TwoInputOperatorHarness,
)
from flowlet.testing.manual_processing_time_service import TestProcessingTimeService
from flowlet.testing.mini_cluster import MiniCluster
from flowlet.testing.operator_harness import OperatorHarness, OperatorSnapshot, StreamRecord, operator_of
from netstack.testing.embedded_event_loop import ManualClock

__all__ = [
    "KeyedOneInputOperatorHarness",
    "KeyedTwoInputOperatorHarness",
    "MailboxHarness",
    "ManualClock",
    "MiniCluster",
    "OneInputOperatorHarness",
    "OperatorHarness",
    "OperatorSnapshot",
    "ProcessResources",
    "StreamRecord",
    "SubtaskPlace",
    "TestProcessingTimeService",
    "TwoInputOperatorHarness",
    "operator_of",
]
