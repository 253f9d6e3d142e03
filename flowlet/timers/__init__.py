"""Timers of the watermark and of the clock, by key."""
