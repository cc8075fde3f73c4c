"""Tools of a server of the Model Context Protocol, a program that speaks JSON-RPC in lines over its standard streams.

    with McpServer(["python3", "clock.py"]) as server:
        answer = yield Task("What time is it?", tools=server.tools)
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from typing import Any, Dict, List, Optional, Sequence

from .sandbox import Sandbox, SandboxBroken
from .tools import Tool, ToolBroken, without_special_tokens

_VERSION = "2025-06-18"
_MOST_LINE = 4 << 20
_MOST_TOOLS = 256
_MOST_PAGES = 64  # of a list of tools


class McpServer:
    """Started and asked for its tools at once, and ended with `close`, at the latest with the thread that has started it
    (setpriv). Of one thread at a time. ToolBroken: it cannot be used; a server that is not trusted gets a sandbox, and its command is looked for there.

    seconds         for each answer, and for its list of tools
    environment     variables of its own beside PATH; it inherits none
    special_tokens  what it says may have them (tools.without_special_tokens)
    """

    def __init__(self, command: Sequence[str], seconds: float = 30, environment: Optional[Dict[str, str]] = None, sandbox: Optional[Sandbox] = None,
                 special_tokens: bool = False) -> None:
        self._untrusted = not special_tokens
        self._name, self._seconds, self._ids = " ".join(command), seconds, 0
        streams: Dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        try:
            if sandbox is not None:
                self._process = sandbox.start(command, environment, **streams)
            else:
                variables = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), **(environment or {})}
                if shutil.which(command[0], path=variables["PATH"]) is None:
                    raise FileNotFoundError("there is no such program")
                setpriv = shutil.which("setpriv")
                ends_with_us = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
                self._process = subprocess.Popen([*ends_with_us, *command], start_new_session=True, env=variables, **streams)
        except (OSError, ValueError, SandboxBroken) as problem:
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

    def _ask(self, method: str, params: Dict[str, Any], until: float = float("inf")) -> Dict[str, Any]:
        self._ids += 1
        self._send({"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params})
        until = min(until, time.monotonic() + self._seconds)
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
        cursor: Any = None
        seen: List[Any] = []
        until = time.monotonic() + self._seconds
        while True:
            page = self._ask("tools/list", {"cursor": cursor} if cursor else {}, until)
            listed = page.get("tools", [])
            if not isinstance(listed, list):
                raise ToolBroken(f"the MCP server {self._name} lists what is no list: {str(listed)[:80]}")
            for one in listed:
                if not isinstance(one, dict) or not isinstance(one.get("name"), str):
                    raise ToolBroken(f"the MCP server {self._name} lists what is no tool: {str(one)[:80]}")
                if self._untrusted:  # it is shown to the model, too
                    one = json.loads(without_special_tokens(json.dumps(one, ensure_ascii=False)))
                tools.append(Tool(one["name"], str(one.get("description", "")), one.get("inputSchema", {"type": "object"}), self._calls(one["name"]), self._untrusted))
            cursor = page.get("nextCursor")
            if len(tools) > _MOST_TOOLS:
                raise ToolBroken(f"the MCP server {self._name} lists more than {_MOST_TOOLS} tools")
            if not cursor:
                return tools
            seen.append(cursor)
            if cursor in seen[:-1] or len(seen) >= _MOST_PAGES:
                raise ToolBroken(f"the MCP server {self._name} has no end of its list of tools: page {len(seen)}, cursor {str(cursor)[:80]!r}")

    def _calls(self, name: str) -> Any:
        def call(**arguments: Any) -> str:
            try:
                made = self._ask("tools/call", {"name": name, "arguments": arguments})
            except _Refused as why:
                return f"error: {name}: {why}"
            parts, texts = made.get("content", []), []
            for part in parts if isinstance(parts, list) else [parts]:
                if not isinstance(part, dict) or (part.get("type") == "text" and not isinstance(part.get("text"), str)):
                    raise ToolBroken(f"the MCP server {self._name} answered {name} with what is no content: {str(part)[:80]}")
                texts.append(part["text"] if part.get("type") == "text" else f"({part.get('type')}, which is no text)")
            text = "\n".join(texts)
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
