"""The protocol handlers of server and client."""
