"""Event time and processing time timers, by key."""
