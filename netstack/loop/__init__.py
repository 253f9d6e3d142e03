"""The event loop of a process: its thread, timers, wake-ups and forks."""
