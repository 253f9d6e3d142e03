"""Pickles values of any type; reads only plain values from senders that are not trusted."""
