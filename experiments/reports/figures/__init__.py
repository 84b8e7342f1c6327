"""Figures of reports, one kind a file; none touches pyplot's global state, each can be told without colour."""
