"""Headless Chromium over the DevTools protocol, with nothing but the standard library.

Chromium reads commands on file descriptor 3 and answers on 4, each message ended by a zero byte
(`--remote-debugging-pipe`). Scripts are evaluated by the debugger, which the page's own policy does
not restrain, so the page under test is the page that ships, unchanged.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DEADLINE = 30.0


def executable() -> str | None:
    """Where Chromium is, if anywhere; VERIFY_CHROMIUM overrides."""
    return os.environ.get("VERIFY_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One Chromium process. `page()` gives a fresh tab."""

    def __init__(self) -> None:
        binary = executable()
        if binary is None:
            raise RuntimeError("no Chromium on the path")
        self.profile = tempfile.TemporaryDirectory(prefix="verify-chromium-", ignore_cleanup_errors=True)
        command_read, self._write = os.pipe()
        self._read, answer_write = os.pipe()
        # the shell moves both ends to 3 and 4, where Chromium expects them, and becomes Chromium
        shell = f'exec "$0" "$@" 3<&{command_read} 4>&{answer_write}'
        arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={self.profile.name}",
        ]
        self.process = subprocess.Popen(
            ["bash", "-c", shell, binary, *arguments],
            pass_fds=(command_read, answer_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(answer_write)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self.idle: list[str] = []  # tabs of closed pages

    def close(self) -> None:
        try:
            self.send("Browser.close")
            self.process.wait(5)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self._write)
        os.close(self._read)
        self.profile.cleanup()

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method and wait for its answer; events that arrive meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + DEADLINE
        while True:
            answer = self._receive(end)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait_for(self, method: str, session: str) -> dict[str, Any]:
        """The next event of a kind; one that came already counts."""
        end = time.monotonic() + DEADLINE
        seen = 0
        while True:
            for event in self.events[seen:]:
                if event.get("method") == method and event.get("sessionId") == session:
                    return event
            seen = len(self.events)
            self.events.append(self._receive(end))

    def _receive(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            chunk = os.read(self._read, 1 << 16) if ready else b""
            if not chunk:
                state = self.process.poll()
                raise RuntimeError("Chromium gave no answer" if state is None else f"Chromium ended: {state}")
            self._buffer += chunk
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message

    def page(self) -> Page:
        return Page(self)


class Page:
    """A tab without network, that remembers every request, console message and refused load."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        # the process of a new tab takes 0.3 s of CPU
        target = (
            browser.idle.pop() if browser.idle else browser.send("Target.createTarget", url="about:blank")["targetId"]
        )
        self.target = target
        self.session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send(
            "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.send(method, self.session, **params)

    def open(self, path: Path) -> None:
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.browser.wait_for("Page.loadEventFired", self.session)

    def close(self) -> None:
        """Leaves an empty tab. What was set for the session ends with it."""
        self.send("Page.navigate", url="about:blank")
        self.browser.send("Target.detachFromTarget", sessionId=self.session)
        self.browser.idle.append(self.target)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited, exceptions raised."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def resize(self, width: int, height: int = 900) -> None:
        """Also sets a light page."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])

    def _mine(self, *methods: str) -> list[dict[str, Any]]:
        self.evaluate("0")  # a round trip, so that pending events are in
        return [
            event["params"]
            for event in self.browser.events
            if event.get("sessionId") == self.session and event["method"] in methods
        ]

    @property
    def complaints(self) -> list[str]:
        """Console messages, uncaught exceptions and refused loads."""
        found = self._mine("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event) for event in found]

    @property
    def blocked(self) -> list[str]:
        """Why loads were refused."""
        events = self._mine("Network.loadingFailed")
        return [event["blockedReason"] for event in events if "blockedReason" in event]

    @property
    def requests(self) -> list[str]:
        """Addresses of everything that the page asked for, itself included."""
        return [event["request"]["url"] for event in self._mine("Network.requestWillBeSent")]
