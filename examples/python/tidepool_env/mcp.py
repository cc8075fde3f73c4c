"""Tools of a server of the Model Context Protocol, a program that speaks JSON-RPC in lines over its standard streams.

    with McpServer(["python3", "clock.py"]) as server:
        answer = yield Task("What time is it?", tools=server.tools)
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from typing import Any, Dict, List, Optional, Sequence

from .sandbox import Sandbox, SandboxBroken
from .tools import Tool, ToolBroken

_VERSION = "2025-06-18"
_MOST_LINE = 4 << 20
_MOST_TOOLS = 256


class McpServer:
    """Started and asked for its tools at once, and ended with `close`, at the latest with this process's guard. Of one thread
    at a time. ToolBroken: it cannot be used; a server that is not trusted gets a sandbox, and its command is looked for there.

    seconds      for each answer
    environment  variables of its own beside PATH; it inherits none
    """

    def __init__(self, command: Sequence[str], seconds: float = 30, environment: Optional[Dict[str, str]] = None, sandbox: Optional[Sandbox] = None) -> None:
        self._name, self._seconds, self._ids = " ".join(command), seconds, 0
        streams: Dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        try:
            if sandbox is not None:
                self._process = sandbox.start(command, environment, **streams)
            else:
                path = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
                self._process = subprocess.Popen(list(command), start_new_session=True, env={**path, **(environment or {})}, **streams)
        except (OSError, SandboxBroken) as problem:
            raise ToolBroken(f"the MCP server {self._name} cannot be started: {problem}") from None
        self._lines: "queue.Queue[bytes]" = queue.Queue(maxsize=64)
        threading.Thread(target=self._read, daemon=True).start()  # ends with the process's output
        try:
            self._ask("initialize", {"protocolVersion": _VERSION, "capabilities": {}, "clientInfo": {"name": "tidepool", "version": "1"}})
            self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            self.tools = self._list()
        except BaseException as problem:
            self.close()
            if isinstance(problem, _Refused):
                raise ToolBroken(f"the MCP server {self._name} refuses: {problem}") from None
            raise

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while True:
            try:
                line = stream.readline(_MOST_LINE)
            except (OSError, ValueError):  # closed
                line = b""
            self._put(line)
            if not line or not line.endswith(b"\n"):  # its end, or a line that is too long to be one
                return self._put(b"")

    def _put(self, line: bytes) -> None:
        while self._process.poll() is None or not line:
            try:
                return self._lines.put(line, timeout=1)
            except queue.Full:
                if self._process.poll() is not None:
                    return

    def _send(self, message: Dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        stream = self._process.stdin
        assert stream is not None
        failed: List[BaseException] = []

        def write() -> None:
            try:
                stream.write(line)
                stream.flush()
            except (OSError, ValueError) as problem:
                failed.append(problem)

        thread = threading.Thread(target=write, daemon=True)  # a server that reads nothing has a full pipe
        thread.start()
        thread.join(self._seconds)
        if thread.is_alive() or failed:
            raise ToolBroken(f"the MCP server {self._name} {'reads nothing' if thread.is_alive() else 'has ended'}")

    def _ask(self, method: str, params: Dict[str, Any]) -> Dict[str, Any]:
        self._ids += 1
        self._send({"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params})
        until = time.monotonic() + self._seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise ToolBroken(f"the MCP server {self._name} did not answer {method} within {self._seconds:g} s") from None
            if not line:
                raise ToolBroken(f"the MCP server {self._name} has ended, or wrote a line of more than {_MOST_LINE >> 20} MiB")
            try:
                reply = json.loads(line)
            except (ValueError, RecursionError):
                raise ToolBroken(f"the MCP server {self._name} wrote what is no JSON: {line[:80]!r}") from None
            if not isinstance(reply, dict) or "method" in reply or reply.get("id") != self._ids:
                continue  # a notification, a request of its own that nobody serves, an answer that came too late
            if "error" in reply:
                error = reply["error"]
                raise _Refused(str(error.get("message", error)) if isinstance(error, dict) else str(error))
            result = reply.get("result")
            if not isinstance(result, dict):
                raise ToolBroken(f"the MCP server {self._name} answered {method} without a result")
            return result

    def _list(self) -> List[Tool]:
        tools: List[Tool] = []
        cursor: Optional[str] = None
        while True:
            page = self._ask("tools/list", {"cursor": cursor} if cursor else {})
            for one in page.get("tools", []):
                if not isinstance(one, dict) or not isinstance(one.get("name"), str):
                    raise ToolBroken(f"the MCP server {self._name} lists what is no tool: {str(one)[:80]}")
                tools.append(Tool(one["name"], str(one.get("description", "")), one.get("inputSchema", {"type": "object"}), self._calls(one["name"])))
            cursor = page.get("nextCursor")
            if len(tools) > _MOST_TOOLS:
                raise ToolBroken(f"the MCP server {self._name} lists more than {_MOST_TOOLS} tools")
            if not cursor:
                return tools

    def _calls(self, name: str) -> Any:
        def call(**arguments: Any) -> str:
            try:
                made = self._ask("tools/call", {"name": name, "arguments": arguments})
            except _Refused as why:
                return f"error: {name}: {why}"
            parts = [part for part in made.get("content", []) if isinstance(part, dict)]
            text = "\n".join(str(part["text"]) if part.get("type") == "text" else f"({part.get('type')}, which is no text)" for part in parts)
            return f"error: {name}: {text}" if made.get("isError") else text

        return call

    def close(self) -> None:
        if self._process.poll() is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:  # the kernel's business now
            pass

    def __enter__(self) -> "McpServer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Refused(Exception):
    """The server answered with an error."""
