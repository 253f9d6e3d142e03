"""Serializers of single values by their declared types."""
