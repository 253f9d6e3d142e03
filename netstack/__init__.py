"""Flink's network stack on asyncio: credit-based flow control over real TCP."""
