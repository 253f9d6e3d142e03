"""What declared types do to records on their way to another operator: conversion, and their text when they are printed.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
