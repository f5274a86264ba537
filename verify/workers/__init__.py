"""Processes that may crash or hang, on this machine or on a cluster, and what is sent to them."""
