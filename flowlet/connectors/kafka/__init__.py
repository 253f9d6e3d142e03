"""Kafka: readers and writers on librdkafka."""
