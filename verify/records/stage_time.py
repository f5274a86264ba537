"""Measures how long a stage of a night took, over all starts of the night."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from verify.records.files import say_lost

LOG = "stages.jsonl"


class StageTime:
    """Logs the stages in the night's folder: one line when a stage begins, another when it ends.

    A stage that was killed has no second line. The next start adds it, with the last change of the stage's files.
    Work that was not written by then is repeated, and counts then.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun = 0.0

    def begin(self, stage: str) -> None:
        """Records that the stage begins."""
        for begun, ended in self._starts(stage).items():
            if ended is None:
                self._add({"stage": stage, "begun": begun, "ended": max([begun, *self._changes(stage)])})
        self._begun = time.time()
        self._add({"stage": stage, "begun": self._begun})

    def end(self, stage: str) -> float:
        """Records that the stage ends. Returns its seconds, including those of earlier starts."""
        starts = {**self._starts(stage), self._begun: time.time()}  # the log may be lost: a full disk
        self._add({"stage": stage, "begun": self._begun, "ended": starts[self._begun]})
        return round(sum(max(0.0, ended - begun) for begun, ended in starts.items() if ended is not None), 1)

    def _starts(self, stage: str) -> dict[float, float | None]:
        """Returns when the stage began and ended. Both lines of a start have the same begin, the later one the end."""
        return {line["begun"]: line.get("ended") for line in self._lines(stage)}

    def _changes(self, stage: str) -> list[float]:
        """Returns when the files of a stage last changed: NAME.parts, and those in the folder NAME."""
        found = [self._folder / f"{stage}.parts", *(self._folder / stage).glob("*")]
        return [path.stat().st_mtime for path in found if path.exists()]

    def _lines(self, stage: str) -> list[dict[str, Any]]:
        path = self._folder / LOG
        found = []
        for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                line = json.loads(text)
            except ValueError:
                continue  # empty, or cut off
            if isinstance(line, dict) and line.get("stage") == stage and isinstance(line.get("begun"), float):
                found.append(line)
        return found

    def _add(self, line: dict[str, Any]) -> None:
        path = self._folder / LOG
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as log:
                log.write(f"\n{json.dumps(line)}\n")  # begins with a newline, so that a line that was cut off ends here
        except OSError as error:
            say_lost(path, error.strerror)
