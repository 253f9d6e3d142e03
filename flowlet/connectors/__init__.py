"""Sources and sinks of the outside world."""
