"""Judges untrusted solutions: `verify judge` (docs/judge.md).

`judging.py` plans a judgement and reads the record of its run. `formats/` reads problems, and `problem.py` declares
them as kernels. `host.py` calls a solution, which runs in a separate process (`runner.py`) behind the limits of
`sandbox.py`. `clock.py` times it by chains of calls (`chain.py`).
"""
