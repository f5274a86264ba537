"""Processes for code that is not trusted, apart from the machine and from everything of the user.

`starter.py` forks them from a process that holds nothing of its parent, each below a supervisor. `confine.py` takes
their rights, by the system calls and files of `rules.toml`; `memory.py` limits their memory. `process.py` is the other
end: it starts such a process and sends it requests.
"""
