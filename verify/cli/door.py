"""The language of `verify serve` over a pipe: MCP, a message of JSON-RPC on each line.

Four requests and two notifications are all that a server of tools needs. The official SDK is not used: it brings an
HTTP server and an event loop, and it would own the pipe.
"""

import threading
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from verify import __version__
from verify.cli import exits
from verify.cli.tools import TOOLS, Answer, described, options_of
from verify.errors import VerifyError
from verify.workers.lanes import Lanes, Stopped, Task
from verify.workers.requests import Failure

INSTRUCTIONS = """\
verify measures how wrong a GPU kernel is at worst, against the exact real number, and names the input that shows it. \
A kernel is declared in a Python file: @verify.kernel(op="gelu") or @verify.kernel(like=torch_function) above it. \
`run` measures the kernels of a file; `replay` and `explain` take the worst input of its result; `judge` holds an \
untrusted solution against a problem. Paths are relative to the folder of the server. Each call reads files anew. \
An exit code of 1 is a finding about the kernel, not a failure of the call.\
"""
STEP = 1e-3  # percent
LONGEST = 1 << 20  # bytes of a line
VERSIONS = ("2025-11-25", "2025-06-18", "2024-11-05")  # of MCP; 2025-03-26 also sends several messages on a line


class Door:
    """Reads requests, hands them to the lanes, and writes each answer as it is made."""

    def __init__(
        self, write: Callable[[bytes], None], lanes: Lanes, seconds: float, backend: str | None = None
    ) -> None:
        self._write, self._lanes, self._seconds, self._backend = write, lanes, seconds, backend
        self._writing = threading.Lock()

    def read(self, stream: BinaryIO) -> None:
        """Takes lines until the end of the stream."""
        while line := stream.readline(LONGEST + 1):
            if len(line) > LONGEST:
                while line and not line.endswith(b"\n"):
                    line = stream.readline(LONGEST)
                self._error(None, -32700, f"a request has at most {LONGEST:,} bytes; received more")
            elif line.strip():
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            message = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return self._error(None, -32700, f"a line is one message of JSON-RPC; received other text ({error})")
        if not isinstance(message, dict) or "jsonrpc" not in message:
            return self._error(None, -32600, "a line is one message of JSON-RPC; received other JSON (docs/serve.md)")
        method, identity, given = message.get("method"), message.get("id"), message.get("params")
        given = given if isinstance(given, dict) else {}
        if method == "notifications/cancelled" and _is_id(given.get("requestId")):
            self._lanes.cancel(given["requestId"])
        if "id" not in message or "method" not in message:
            return None  # other notifications, and answers to nothing
        if not _is_id(identity) or not isinstance(method, str):
            return self._error(None, -32600, "the id of a request is a text or a whole number, its method a text")
        if method == "tools/call":
            return self._call(identity, given)
        version = given.get("protocolVersion")
        results: dict[str, Callable[[], dict[str, Any]]] = {
            "initialize": lambda: {
                "protocolVersion": version if version in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "verify", "version": __version__},
                "instructions": INSTRUCTIONS,
            },
            "ping": dict,
            "tools/list": lambda: {"tools": list(map(described, TOOLS))},
        }
        if method not in results:
            return self._error(identity, -32601, f"no method {method!r}; known: {', '.join(results)}, tools/call")
        return self._send({"jsonrpc": "2.0", "id": identity, "result": results[method]()})

    def _send(self, message: dict[str, Any]) -> None:
        """Writes one line."""
        line = msgspec.json.encode(message) + b"\n"
        with self._writing:
            self._write(line)

    def _error(self, identity: Any, code: int, text: str) -> None:
        self._send({"jsonrpc": "2.0", "id": identity, "error": {"code": code, "message": text}})

    def _call(self, identity: Any, given: dict[str, Any]) -> None:
        name, wanted = given.get("name"), given.get("arguments") or {}
        meta = given.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        at = 0.0

        def reply(outcome: Any) -> None:
            if not isinstance(outcome, Stopped) or outcome.args[0] != "cancelled":  # the client waits for no answer
                is_answer, text = isinstance(outcome, Answer), getattr(outcome, "text", str(outcome))
                content = {"content": [{"type": "text", "text": text}], "structuredContent": _found(outcome)}
                self._send({"jsonrpc": "2.0", "id": identity, "result": content | {"isError": not is_answer}})

        def progress(text: str) -> None:
            nonlocal at
            if token is not None:
                # MCP demands that each number is larger than the last one, and lines come more often than shares change
                at = max(at + STEP, round(100 * getattr(text, "share", 0.0), 2))
                told = {"progressToken": token, "progress": at, "total": 100, "message": str(text)}
                self._send({"jsonrpc": "2.0", "method": "notifications/progress", "params": told})

        if not isinstance(name, str) or name not in TOOLS or not isinstance(wanted, dict):
            received = repr(name) if isinstance(wanted, dict) else f"arguments of type {type(wanted).__name__}"
            rule = f"a tool is {', '.join(TOOLS)}, its arguments are an object"
            return self._error(identity, -32602, f"{rule}; received {received}")
        try:
            chosen = options_of(name, wanted, self._backend)
            work = TOOLS[name].work
            self._lanes.submit(Task(identity, lambda pool: work(chosen, pool, progress), reply, self._seconds))
        except VerifyError as error:
            reply(error)
        return None


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _found(outcome: Answer | VerifyError) -> dict[str, Any]:
    """Returns an answer as it is sent, or an error with its rule, the received value and the next step."""
    if isinstance(outcome, Answer):
        return {"exit_code": outcome.exit_code, "result": outcome.result}
    failure = Failure("stopped", str(outcome)) if isinstance(outcome, Stopped) else Failure.of(outcome)
    rule, _, received = failure.text.partition("; received ")
    told = {"kind": failure.kind, "rule": rule, "received": received, "hint": failure.hint or ""}
    return {"exit_code": exits.USAGE if failure.kind in ("usage", "kernel") else exits.INCOMPLETE, "error": told}
