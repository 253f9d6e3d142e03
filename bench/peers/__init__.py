"""Systems that users would pick instead: each module runs our work in another system, if it is installed."""
