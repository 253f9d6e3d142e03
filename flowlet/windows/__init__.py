"""Windows on the side of the task: the operator, its state and its timers."""
