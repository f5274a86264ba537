"""Judges untrusted solutions: `verify judge` (docs/judge.md).

`judging.py` plans a judgement and reads the record of its run. `formats/` reads problems, and `problem.py` declares
them as kernels. The process of a solution (`runner.py`) runs in the sandbox (`verify.workers.sandbox`), and `host.py`
calls it. `clock.py` times it by chains of calls (`chain.py`).
"""
