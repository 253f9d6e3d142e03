"""What declared types do to records on their way to another operator: conversion, and their text when they are printed."""
