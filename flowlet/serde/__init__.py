"""Serializes stream elements, values of declared types, and the parts of a deployment."""
