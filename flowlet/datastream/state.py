"""State as users name it: the states, their descriptors, and how long an entry of keyed state lives.

Side:   pure.
Source: PyFlink ``pyflink.datastream.state``.
"""
# ruff: noqa: F403, F405 - __all__ lists the names

from flowlet.datastream.states.state_descriptors import *
from flowlet.datastream.states.state_ttl_config import StateTtlConfig

__all__ = [
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AppendingState",
    "BroadcastState",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "MergingState",
    "OperatorStateStore",
    "ReadOnlyBroadcastState",
    "ReducingState",
    "ReducingStateDescriptor",
    "State",
    "StateDescriptor",
    "StateTtlConfig",
    "ValueState",
    "ValueStateDescriptor",
]
