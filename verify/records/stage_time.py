"""Measures how long a stage of a night took, over all starts of the night."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

from verify.records.files import say_lost

LOG = "stages.jsonl"


class StageTime:
    """Logs the stages in the night's folder: one line when a stage begins, another when it ends.

    A stage that was killed has no second line. Its time ends when its last unit was finished, by the files of its
    folder. Later work of that call is repeated, and counts then.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun = 0.0

    def begin(self, stage: str) -> None:
        """Records that the stage begins."""
        self._begun = time.time()
        self._add({"stage": stage, "begun": self._begun})

    def end(self, stage: str) -> float:
        """Records that the stage ends. Returns its seconds, including those of earlier starts."""
        spent = self._earlier(stage) + max(0.0, time.time() - self._begun)
        self._add({"stage": stage, "begun": self._begun, "ended": time.time()})
        return round(spent, 1)

    def _earlier(self, stage: str) -> float:
        """Returns the seconds of all earlier starts."""
        # Each start has two lines under the same begin. The later line has the end.
        ends = {line["begun"]: line.get("ended") for line in self._lines(stage) if line["begun"] < self._begun}
        spent = 0.0
        for begun, until in itertools.pairwise([*ends, self._begun]):
            ended = ends[begun] or max(self._finished(stage, begun, until), default=begun)
            spent += max(0.0, ended - begun)
        return spent

    def _finished(self, stage: str, begun: float, until: float) -> list[float]:
        """Returns when the units of a stage were finished, for units between two moments."""
        folder = self._folder / stage
        found = [path.stat().st_mtime for path in folder.iterdir()] if folder.is_dir() else []
        return [moment for moment in found if begun < moment < until]

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
