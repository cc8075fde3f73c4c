"""Models that call tools: tidepool_env.tools, .mcp and .sandbox, and a whole run of an environment that says messages.

Needs what environment_service_test.py needs; the sandbox needs bubblewrap and user namespaces, without which its tests skip."""
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import unittest

from environment_service_test import CONFIG, PACKAGE, PYTHON, processes
from harness import PATIENCE, RunTest

TOOLS = PACKAGE / "tools"


def python(script, *args, timeout=PATIENCE, **variables):
    return subprocess.run([PYTHON, "-c", script, *map(str, args)], capture_output=True, text=True, timeout=timeout, env={**os.environ, "PYTHONPATH": str(PACKAGE), **variables})


def no_sandbox():
    """Why there is none here; empty: there is one."""
    return "no Python with grpcio" if PYTHON is None else python("from tidepool_env.sandbox import require; require()").stderr.strip().split("\n")[-1]


class PythonTest(RunTest):
    def says(self, script, *args, **variables):
        """What a script says as JSON in its last line."""
        made = python("import json, os, sys, time\nsay = lambda value: print(json.dumps(value))\n" + script, *args, **variables)
        self.assert_done(made)
        return json.loads(made.stdout.splitlines()[-1])


MCP = r'''
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "t", "version": "1"}}
    elif asked["method"] == "tools/list" and not asked["params"]:
        result = {"tools": [{"name": "twice", "description": "Twice.", "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}], "nextCursor": "2"}
    elif asked["method"] == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("fails", "hangs", "dies", "chats", "lies")]}
    else:
        name = asked["params"]["name"]
        while name == "hangs":
            pass
        if name == "dies":
            sys.exit(3)
        if name == "lies":
            print("no JSON", flush=True)
        if name == "chats":
            print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message"}), flush=True)
        result = {"content": [{"type": "text", "text": str(2 * asked["params"]["arguments"].get("n", 0))}], "isError": name == "fails"}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
'''


@unittest.skipIf(PYTHON is None, "no Python with grpcio and grpcio-tools (scripts/setup --tests)")
class ToolsTest(PythonTest):
    def test_a_wrong_call_is_told_to_the_model_and_ends_nothing(self):
        said = self.says(r'''
from typing import List, Literal, Optional
from tidepool_env import BadEpisode, Call, Said
from tidepool_env.tools import call, tool, tool_environment

@tool
def area(sides: List[int], unit: Literal["m", "ft"] = "m", note: Optional[str] = None) -> str:
    """Of a box."""
    if sides == [0]: raise ZeroDivisionError("no side")
    return "x" * 90 if sides == [1] else f"{sides[0] * sides[1]} {unit}2"

@tool_environment(tools=[area], max_turns=20, result_chars=60)
def boxes(seed):
    answer = yield "How large?"
    answer = yield f"{answer}, sure?"
    return (1.0 if answer == "6 m2" else 0.0), {"solved": True}

episode = boxes.open()
first = episode.reset(1, False).checked(first=True)
heard = []
def turn(said):
    step = episode.step(said).checked()
    heard.append([[m.role, m.content, m.name] for m in step.messages])
    return step
turn(call("area", sides=[2, 3]))
for arguments in ({}, {"sides": 3}, {"sides": [True]}, {"sides": [2, 3], "unit": "km"}, {"sides": [2, 3], "depth": 1}, {"sides": [0]}, {"sides": [1]}, {"sides": [2, 3], "note": None}):
    turn(Said("", "", [Call("area", arguments)]))
turn(Said("", "", [Call("volume", {})], "<tool_call>{"))
turn(Said("", "", [Call("area", {"sides": [1, 1]})] * 18))
turn("6")
end = turn("6 m2")
say([json.loads(first.tools), [[m.role, m.content] for m in first.messages], heard, end.reward, end.terminated, end.solved])
''')
        tools, first, heard, reward, terminated, solved = said
        self.assertEqual(tools, [{"type": "function", "function": {"name": "area", "description": "Of a box.", "parameters": {
            "type": "object", "properties": {"sides": {"type": "array", "items": {"type": "integer"}}, "unit": {"enum": ["m", "ft"]},
                                             "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "required": ["sides"], "additionalProperties": False}}}])
        self.assertEqual(first, [["user", "How large?"]])
        self.assertEqual(heard[0], [["tool", "6 m2", "area"]])
        words = [turn[0][1] for turn in heard[1:9]]
        for found, wanted in zip(words, ["error: area: the arguments: sides is missing", "error: area: sides: expected array, found 3", "error: area: sides[0]: expected integer, found True",
                                         "error: area: unit: expected one of 'm', 'ft', found 'km'", "error: area: the arguments: there is no 'depth'", "error: area: ZeroDivisionError: no side",
                                         "x" * 60 + "... (30 characters more)", "6 m2"]):
            self.assertTrue(found.startswith(wanted[:60]), (found, wanted))
        self.assertEqual(heard[9], [["tool", "error: there is no tool 'volume'; there is area", ""], ["tool", "error: this is no call: <tool_call>{", ""]])
        self.assertEqual([len(heard[10]), heard[10][-1][1], heard[11]], [17, "error: a turn may have 16 calls; the last 2 are not answered", [["user", "6, sure?", ""]]])
        self.assertEqual([reward, terminated, solved], [1.0, True, True])

    def test_an_episode_that_never_answers_is_graded_at_its_last_turn(self):
        said = self.says(r'''
from tidepool_env.tools import call, tool, tool_environment
@tool
def nothing() -> str:
    return ""
@tool_environment(tools=[nothing], max_turns=2)
def waits(seed):
    answer = yield "?"
    return 0.5 if answer == "" else 0.0
episode = waits.open()
episode.reset(1, False)
steps = [episode.step(call("nothing")).checked() for _ in range(2)]
say([[m.content for m in steps[0].messages], steps[1].reward, steps[1].over, steps[1].is_solved])
''')
        self.assertEqual(said, [["(no output)"], 0.5, True, True])

    def test_the_calls_of_a_turn_have_a_time_together(self):
        said = self.says(r'''
from tidepool_env import Call, Said
from tidepool_env.tools import tool, tool_environment
@tool
def slow() -> str:
    time.sleep(0.3)
    return "done"
@tool_environment(tools=[slow], max_turns=2, turn_seconds=0.4)
def waits(seed):
    yield "?"
    return 1.0
episode = waits.open()
episode.reset(1, False)
say([[m.content, m.name] for m in episode.step(Said("", "", [Call("slow", {})] * 4)).messages])
''')
        self.assertEqual(said, [["done", "slow"]] * 2 + [["error: this turn's time is over", "slow"]] * 2)

    def test_a_function_without_types_is_no_tool(self):
        for arguments, words in [("a", "the argument a has no type"), ("a: set", "str, int, float"), ("*a: int", "cannot be given by its name")]:
            made = python(f"from tidepool_env.tools import tool\n@tool\ndef f({arguments}): pass")
            self.assertEqual(made.returncode, 1)
            self.assertIn(words, made.stderr)

    def test_the_tools_of_an_mcp_server_are_called_and_what_it_does_wrong_has_a_name(self):
        (self.dir / "server.py").write_text(MCP)
        said = self.says(r'''
from tidepool_env.mcp import McpServer
from tidepool_env.tools import ToolBroken
def server(): return McpServer([sys.executable, sys.argv[1]], seconds=2)
out = []
with server() as one:
    tools = {tool.name: tool for tool in one.tools}
    out += [sorted(tools), tools["twice"].answer({"n": 21}), tools["twice"].answer({"n": "21"}), tools["fails"].answer({}), tools["chats"].answer({"n": 1})]
for name in ("hangs", "dies", "lies"):
    with server() as one:
        try:
            out.append({tool.name: tool for tool in one.tools}[name].answer({}))
        except ToolBroken as why:
            out.append(str(why).split("server.py ")[1])
try:
    McpServer(["/nonexistent"])
except ToolBroken as why:
    out.append(str(why))
say(out)
''', self.dir / "server.py")
        self.assertEqual(said[:5], [["chats", "dies", "fails", "hangs", "lies", "twice"], "42", "error: twice: n: expected integer, found '21'", "error: fails: 0", "2"])
        for found, wanted in zip(said[5:], ["did not answer tools/call within 2 s", "has ended", "wrote what is no JSON: b'no JSON", "the MCP server /nonexistent cannot be started"]):
            self.assertTrue(found.startswith(wanted), found)
        self.wait_for(lambda: not processes(lambda words: str(self.dir / "server.py") in words), "the end of the servers")

    def test_a_server_that_keeps_no_rule_of_the_protocol_is_broken_and_none_outlives_its_program(self):
        (self.dir / "bad.py").write_text(r'''
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    result = {"tools": [{"name": "t", "description": "<|x|>", "inputSchema": {"type": "object"}}], "nextCursor": "again" if sys.argv[1] == "cursor" else ""}
    if asked["method"] == "tools/call":
        result = {"content": {"null": None, "textless": [{"type": "text"}], "special": [{"type": "text", "text": "<|im_end|>\n<s>"}]}[sys.argv[1]]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
''')
        said = self.says(r'''
from tidepool_env.mcp import McpServer
from tidepool_env.tools import ToolBroken
out = []
for how, more in (("cursor", {}), ("null", {}), ("textless", {}), ("special", {}), ("special", {"special_tokens": True})):
    try:
        with McpServer([sys.executable, sys.argv[1], how], seconds=5, **more) as one:
            out.append([one.tools[0].description, one.tools[0].answer({})])
    except ToolBroken as why:
        out.append(str(why).split("bad.py ")[1])
say(out)
''', self.dir / "bad.py")
        self.assertEqual(said, ["cursor has no end of its list of tools: page 2, cursor 'again'", "null answered t with what is no content: None",
                                "textless answered t with what is no content: {'type': 'text'}", ["< |x|>", "< |im_end|>\n< s>"], ["<|x|>", "<|im_end|>\n<s>"]])
        if shutil.which("setpriv"):
            script = "import sys, time\nfrom tidepool_env.mcp import McpServer\none = McpServer([sys.executable, sys.argv[1], 'null'])\ntime.sleep(60)"
            program = subprocess.Popen([PYTHON, "-c", script, str(self.dir / "bad.py")], env={**os.environ, "PYTHONPATH": str(PACKAGE)})
            left = lambda: processes(lambda words: words[-2:] == [str(self.dir / "bad.py"), "null"])  # noqa: E731
            self.wait_for(lambda: len(left()) >= 1, "its begin")
            time.sleep(1)
            program.kill()
            program.wait(PATIENCE)
            self.wait_for(lambda: not left(), "the end of the server")

    def test_the_check_calls_every_tool(self):
        path = self.dir / "tried.py"
        path.write_text('''from tidepool_env.tools import Tool, ToolBroken, tool, tool_environment
@tool
def fine(text: str, n: int = 0) -> str:
    """Fine."""
    return text * 2
def fails(**arguments):
    raise ToolBroken("out of order")
def made(name, tools, **more):
    @tool_environment(tools=tools, name=name, max_turns=2, **more)
    def one(seed):
        yield "?"
        return 1.0
    return one
good = made("good", [fine])
silent = made("silent", [fine], announce=False)
bare = made("bare", [])
broken = made("broken", [fine, Tool("fails", "", {"type": "object", "properties": {"a": {"type": "integer"}}}, fails)])
odd = made("odd", [Tool("odd", "", {"type": "object", "required": 5}, fails)])
wide = made("wide", [Tool("wide", "", {"type": "object", "properties": {f"k{i}": {"type": "integer"} for i in range(257)}}, fails)])
''')
        checked = subprocess.run([PYTHON, "-m", "tidepool_env", "check", str(path), "--seeds=1"], cwd=PACKAGE, capture_output=True, text=True, timeout=PATIENCE)
        lines = [line for line in checked.stdout.splitlines() if "answers calls" in line]
        what = "answers calls of its tools: right, empty and of wrong types"
        self.assertEqual(lines, [f"ok   good: {what}", f"ok   silent: {what}", f"ok   bare: {what} (not tried: it offers none)",
                                 f'FAIL broken: {what}: a call of fails with {{"a": 1}}: ToolBroken: out of order',
                                 f"FAIL odd: {what}: the schema of odd: TypeError: 'int' object is not iterable",
                                 f"FAIL wide: {what}: reset(0): the tools have an object of 257 keys; Tidepool takes 256"], checked.stderr)
        self.assertEqual(checked.returncode, 1)

    def test_what_a_policy_says_to_messages_is_trained_on_and_evaluated(self):
        path = self.dir / "talk.py"
        path.write_text('''from tidepool_env import serve
from tidepool_env.tools import Task, tool, tool_environment
@tool
def more() -> str:
    """Says 1."""
    return "1"
@tool_environment(tools=[more], max_turns=3, announce=False)
def talk(seed):
    said = yield Task(f"{1 + seed % 8}?", system="2")
    again = yield f"{1 + seed % 8}-"
    return (said.count("1") + again.count("1")) / 4
serve(talk)
''')
        change = [f'environment.command=[env, "PYTHONPATH={PACKAGE}", "{PYTHON}", "{path}"]', "environment.name=talk"]
        self.assert_done(self.train(CONFIG, *change))
        rows = self.metrics("run")
        for step in range(1, 5):
            self.assertEqual(rows[step]["env/infra_errors"] + rows[step]["env/data_errors"], 0)
        self.assertAlmostEqual(rows[4]["turns/mean"], 2)
        self.assertEqual([r["reason"] for r in self.journal("run") if r["kind"] == "DROP"], [])
        asked = self.command("eval", "--model", str(self.path(run="run")), "--json")
        self.assert_done(asked)
        self.assertEqual(json.loads(asked.stdout)["total"]["rows"], 8)

    def test_the_calculator_keeps_the_rules_and_shows_how(self):
        checked = subprocess.run([PYTHON, "-m", "tidepool_env", "check", str(TOOLS / "calculator.py"), "--seeds=4"], cwd=PACKAGE, capture_output=True, text=True, timeout=PATIENCE)
        self.assert_done(checked)
        self.assertNotIn("FAIL", checked.stdout)
        self.assertIn("takes whatever a policy says", checked.stdout)
        shown = subprocess.run([PYTHON, str(TOOLS / "calculator.py"), "--traces", "3"], env={**os.environ, "PYTHONPATH": str(PACKAGE)}, capture_output=True, text=True, timeout=PATIENCE)
        rows = [json.loads(line)["messages"] for line in shown.stdout.splitlines()]
        self.assertEqual([[turn["role"] for turn in row] for row in rows], [["user", "assistant", "tool", "assistant"]] * 3)
        self.assertTrue(rows[0][1]["content"].startswith('<tool_call>{"name": "'))


REFUSED = no_sandbox()


@unittest.skipIf(REFUSED, REFUSED)
class SandboxTest(PythonTest):
    BEGIN = r'''
from tidepool_env.sandbox import Limits, Sandbox
box = Sandbox(Limits(seconds=2, memory_bytes=128 << 20, work_bytes=1 << 20, processes=32))
def run(command):
    made = box.run(command)
    return [made.status, made.output[:2000], made.cut, made.killed]
'''

    def box(self, *commands, **variables):
        return self.says(self.BEGIN + "say([run(command) for command in sys.argv[1:]])\nbox.close()", *commands, **variables)

    def test_work_stays_from_command_to_command(self):
        said = self.says(self.BEGIN + r'''
box.write("d/a.txt", "one\n")
out = [run("cat d/a.txt; echo two >> d/a.txt; pwd; id -u"), box.read("d/a.txt"), box.read("nothing"), run(["echo", "$HOME"]), run("exit 7")]
box.close()
say(out)''')
        self.assertEqual(said, [[0, "one\n/work\n1000\n", False, ""], "one\ntwo\n", None, [0, "$HOME\n", False, ""], [7, "", False, ""]])

    def test_nothing_outside_is_written_read_or_called(self):
        (self.dir / "secret").write_text("hidden")
        os.chmod(self.dir / "secret", 0o644)
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        port = listener.getsockname()[1]
        said = self.box("touch /a /usr/a /etc/a /dev/a /proc/sys/kernel/hostname; echo $?", f"cat {self.dir}/secret; ln -s {self.dir}/secret link; cat link", "cat /etc/passwd /etc/shadow /root/.ssh/id_rsa",
                        f"bash -c 'echo > /dev/tcp/127.0.0.1/{port}' 2>&1; bash -c 'echo > /dev/tcp/192.0.2.1/80' 2>&1; cat /proc/net/dev | wc -l", "env", "cat /proc/*/environ | tr '\\0' '\\n' | grep -c TOKEN",
                        "for p in /proc/[0-9]*; do cat $p/comm; done", "ls /proc/self/fd", "unshare -Ur true; mount -t tmpfs none /work; echo $?", "mkdir -p /tmp/x; ls / /home /run /var /sys",
                        TIDEPOOL_ENVIRONMENT_TOKEN="hidden-token")
        outside, secret, files, net, env, tokens, others, descriptors, namespaces, folders = said
        self.assertEqual(outside[1].count("cannot touch"), 5, outside)
        self.assertNotIn("hidden", json.dumps(said))
        self.assertEqual(secret[1].count("No such file"), 2)
        self.assertEqual(files[1].count("No such file"), 3, files)
        self.assertIn("Connection refused", net[1])
        self.assertIn("Network is unreachable", net[1])
        self.assertTrue(net[1].endswith("3\n"), net)  # two lines of head, and the loopback device of its own
        self.assertEqual(sorted(line.split("=")[0] for line in env[1].split()), ["HOME", "LANG", "PATH", "PWD"])
        self.assertEqual(tokens[1], "0\n")
        self.assertLessEqual(set(others[1].split()), {"bwrap", "sh", "cat"})
        self.assertLessEqual(set(descriptors[1].split()), {"0", "1", "2", "3"})
        self.assertNotIn("\n0\n", "\n" + namespaces[1])
        self.assertEqual(folders[1].count("cannot access"), 4, folders)

    def test_sockets_that_no_network_namespace_divides_and_calls_that_no_tool_needs_are_refused(self):
        try:  # a listener of the host, where it has vsock
            listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
            listener.bind((socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY))
            listener.listen()
            self.addCleanup(listener.close)
        except OSError:
            pass
        script = r'''
import ctypes, errno, os, socket
def name(go):
    try:
        go()
    except OSError as problem:
        return errno.errorcode[problem.errno]
    return ""
pairs = [name(lambda: make(family, kind)) for make in (socket.socket, socket.socketpair) for family, kind in ((40, 1), (17, 3), (31, 3), (38, 5))]
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": (250, 248, 249, 321, 298, 323, 425, 39 + (1 << 30)), "aarch64": (219, 217, 218, 280, 241, 282, 425)}[os.uname().machine]
print(set(pairs), [name(lambda: socket.socket(family, 3 if family == 16 else 1)) for family in (1, 2, 10, 16)], {(libc.syscall(n, 0, 0, 0, 0, 0), ctypes.get_errno()) for n in numbers}, len(socket.socketpair()))
'''
        said = self.says(self.BEGIN + "say(run(['/usr/bin/python3', '-c', sys.argv[1]]))", script)
        self.assertEqual(said[1], f"{{'EAFNOSUPPORT'}} ['', '', '', ''] {{(-1, {errno.EPERM})}} 2\n")

    def test_variables_of_a_program_are_on_no_command_line(self):
        said = self.says(self.BEGIN + r'''
import subprocess
process = box.start(["/bin/sh", "-c", "echo $KEY; read x"], {"KEY": "a secret"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
heard = process.stdout.readline()
def line(pid):
    try:
        return open(f"/proc/{pid}/cmdline").read()
    except OSError:  # it has ended
        return ""
lines = [line(pid) for pid in os.listdir("/proc") if pid.isdigit()]
process.communicate("")
say([heard, sum("a secret" in line for line in lines if "box.start" not in line)])''')
        self.assertEqual(said, ["a secret\n", 0])

    def test_no_bound_is_passed(self):
        begin = time.monotonic()
        bomb, much, hangs, kills, memory, many, work, shared, files = self.box(
            "bomb() { bomb | bomb & }; bomb; sleep 1; echo alive", "head -c 1000000000 /dev/zero", "sleep 1000", "kill -9 1; kill -9 -1; kill -9 $PPID",
            "head -c 1000000000 /dev/zero | tail", "for i in 1 2 3 4 5 6 7 8; do python3 -c 'b = b\"x\" * (60 << 20); import time; time.sleep(9)' & done; wait",
            "head -c 9000000 /dev/zero > a; wc -c < a", "head -c 9000000 /dev/zero > /dev/shm/a; wc -c < /dev/shm/a", "python3 -c 'f = [open(\"/dev/null\") for _ in range(100)]'")
        self.assertTrue(bomb[3] or "fork" in bomb[1].lower(), bomb)
        self.assertEqual([len(much[1]), much[2]], [2000, True])
        self.assertEqual(hangs[3], "2 s are over")
        self.assertEqual(kills[3], "", "nobody else is reached: what follows is answered")
        self.assertTrue(memory[3] or "memory exhausted" in memory[1], memory)
        self.assertEqual(many[3], "it took more than 128 MiB")
        self.assertTrue(work[1].endswith("1048576\n") and shared[1].endswith("1048576\n"), (work, shared))
        self.assertIn("Too many open files", files[1])
        self.assertLess(time.monotonic() - begin, 200)  # two of them would go on for longer

    def test_nothing_stays_behind(self):
        marker = "98765.4321"
        left = lambda: processes(lambda words: marker in words)  # noqa: E731
        self.box(f"sleep {marker} & setsid sleep {marker} & echo")
        self.wait_for(lambda: not left(), "the end of what a command left")
        for how in (signal.SIGKILL, signal.SIGTERM):
            script = "import sys\n" + self.BEGIN.replace("seconds=2", "seconds=100000") + f"run('setsid sleep {marker} & sleep {marker}')"
            service = subprocess.Popen([PYTHON, "-c", script], env={**os.environ, "PYTHONPATH": str(PACKAGE)})
            self.wait_for(lambda: len(left()) >= 2, "its begin")
            service.send_signal(how)
            service.wait(PATIENCE)
            self.wait_for(lambda: not left(), f"the end of all after {how.name}")

    def test_a_folder_that_a_policy_has_closed_or_filled_is_no_failure_of_the_sandbox(self):
        said = self.says(self.BEGIN + r'''
from tidepool_env.sandbox import CannotWrite, SandboxBroken
def outcome(go):
    try:
        return go()
    except (CannotWrite, SandboxBroken) as why:
        return type(why).__name__
out = []
run("head -c 9000000 /dev/zero > full")
out += [outcome(lambda: box.write("a", "x" * 100000))]
run("rm full; chmod 000 /work")
out += [outcome(lambda: box.write("a", "x")), outcome(lambda: box.read("a"))]
box._keeper.kill()
box._keeper.wait()
out += [outcome(lambda: box.write("a", "x")), outcome(lambda: box.read("a"))]
say(out)''')
        self.assertEqual(said, ["CannotWrite", "CannotWrite", None, "SandboxBroken", "SandboxBroken"])

    def test_where_there_are_no_user_namespaces_untrusted_tools_are_refused_by_name(self):
        bare = ["bwrap", "--unshare-user", "--disable-userns", "--dev-bind", "/", "/", "--", "env", f"PYTHONPATH={PACKAGE}", PYTHON]
        served = subprocess.run([*bare, str(TOOLS / "edit_files.py")], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(served.returncode, 1, served.stderr)
        self.assertIn("edit_files: untrusted tools are refused: bubblewrap gets no user namespace here", served.stderr)
        self.assertIn("user.max_user_namespaces", served.stderr)
        checked = subprocess.run([*bare, "-m", "tidepool_env", "check", str(TOOLS / "edit_files.py")], capture_output=True, text=True, timeout=PATIENCE)
        self.assertIn("FAIL edit_files: has the sandbox that its tools run in: untrusted tools are refused", checked.stdout)

    def test_what_a_shell_prints_has_no_special_tokens_unless_that_is_wanted(self):
        said = self.says(self.BEGIN + r'''
from tidepool_env.tools import shell
command = {"command": "echo '<|im_end|> <end_of_turn> </s> a<b <svg>'"}
say([shell(box).answer(command), shell(box, special_tokens=True).answer(command)])''')
        self.assertEqual(said, ["< |im_end|> < end_of_turn> < /s> a<b <svg>\n", "<|im_end|> <end_of_turn> </s> a<b <svg>\n"])

    def test_a_puzzle_of_files_is_solved_by_commands_alone(self):
        said = self.says(r'''
import re, runpy
from tidepool_env import Call, Said
from tidepool_env.tools import call
puzzle = runpy.run_path(sys.argv[1])["edit_files"]
out = []
for solves in (True, False):
    episode = puzzle.open()
    first = episode.reset(3, False).checked(first=True)
    thing, colour = re.search(r"Make the (\w+) (\w+)", first.messages[0].content).groups()
    heard = [m.content for m in episode.step(call("shell", command=f"sed -i 's/^colour=.*/colour={colour}/' {thing if solves else '*'}.txt; cat {thing}.txt")).messages]
    end = episode.step("done")
    episode.close()
    out.append([heard[0].startswith(f"name={thing}\ncolour={colour}\n"), end.reward, end.terminated])
say(out)
''', TOOLS / "edit_files.py")
        self.assertEqual(said, [[True, 1.0, True], [True, 0.0, True]])


if __name__ == "__main__":
    unittest.main()
