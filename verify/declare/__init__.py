"""Reads declarations of users: a kernel and its promise, the places of targets, the project's configuration."""
