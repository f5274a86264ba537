"""Searches for worst inputs where trying every input is impossible.

    from verify.search.hunt.outcome import hunt
    from verify.search.hunt.requests import Hunt, Settings

    what, settings = Hunt("float32", "y"), Settings(seed=0, evaluations=1 << 20)
    outcome = hunt(kernel, "accuracy.py::my_norm", backend, what, settings)
    outcome.result.figures.scaled_max   # judged exactly: the worst found, not the worst there is

A hunt proves that an error exists, never that none does. `schedule` runs many of them in worker processes.
"""
