"""The decisions of the protocol without I/O: credit, turns, handshake, admission, offers."""
