"""pytest plugin: registers verify's Hypothesis profiles, so that `--hypothesis-profile=ci` works everywhere.

quick: a few examples, for the edit loop. ci: derandomised, the same cases every time, no deadline. nightly: many
examples, seeded by the date, so that two branches tested on one day see the same cases.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

EXAMPLES = {"quick": 5, "ci": 12, "nightly": 400}

for _name, _examples in EXAMPLES.items():
    settings.register_profile(
        _name,
        max_examples=_examples,
        deadline=None,
        derandomize=_name != "nightly",
        suppress_health_check=list(HealthCheck),
        print_blob=_name == "nightly",
    )
