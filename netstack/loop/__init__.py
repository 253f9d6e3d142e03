"""What the loop of a process is made of: its thread, timers, wake-ups, forks."""
