"""Stores cases that broke a law in Hypothesis' example database. The next run tries them before it draws any.

The database belongs to verify's Hypothesis profile in use. By default it is the folder `.hypothesis/examples`, which
the workers of one run and later runs share. `settings.register_profile("verify-nightly", database=...)` in a
conftest.py replaces it. It stores cases as JSON, not Hypothesis' own choice sequences: after a change of a strategy,
these would mean another case. The ci profile has no database, because its verdict must not depend on an earlier run. To
try a case permanently, pin it in a corpus.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis.database import ExampleDatabase
from hypothesis.errors import InvalidArgument

from verify.cases import Case
from verify.errors import UsageError
from verify.laws.profiles import PREFIX


@dataclass(frozen=True)
class Remembered:
    """Holds the stored cases that broke one law of one kernel in one dtype on one backend."""

    database: ExampleDatabase | None
    key: bytes

    def cases(self) -> tuple[Case, ...]:
        """Returns the stored cases, the smallest first. Removes cases that can no longer be read."""
        if self.database is None:
            return ()
        found = []
        for stored in sorted(set(self.database.fetch(self.key)), key=lambda text: (len(text), text)):
            try:
                found.append(Case.from_json(stored.decode()))
            except (UsageError, UnicodeDecodeError):
                self.database.delete(self.key, stored)
        return tuple(found)

    def keep(self, case: Case) -> None:
        """Stores a case that breaks the law."""
        if self.database is not None:
            self.database.save(self.key, case.to_json().encode())

    def drop(self, case: Case) -> None:
        """Removes a case that no longer breaks the law."""
        if self.database is not None:
            self.database.delete(self.key, case.to_json().encode())


def database_of(profile: str) -> ExampleDatabase | None:
    """Returns the example database of verify's Hypothesis profile; None if it has none or is not registered."""
    try:
        return settings.get_profile(PREFIX + profile).database
    except InvalidArgument:
        return None
