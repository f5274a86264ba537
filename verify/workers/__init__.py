"""Processes that may crash or hang, on this machine or on a cluster, and the messages sent to them."""
