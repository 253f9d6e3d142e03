"""Netty's pipeline on asyncio transports."""
