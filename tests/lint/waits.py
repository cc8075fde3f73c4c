#!/usr/bin/env python3
"""Every wait has a deadline (L1 of docs/journal.md): finds waits in C++ sources that can last for ever.

    waits.py FOLDER...     exit 1 and one line a finding: file:line: what was found, what to do

A wait whose end is bounded by something that the line does not show says so, on its own line or the one above:

    writer.join();  // waits: the stream was cancelled above, so its Write returns

A remark that belongs to no wait is a finding too. What text cannot tell is not looked for: loops that do not sleep, reads of
files, streams of gRPC once they are open (their context is what is asked about), locks.
"""

import pathlib
import re
import sys

SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
MARK = re.compile(r"//.*?\bwaits: (.*)")
NO_REASON = 10  # characters; less is no reason

FREE = r"(?<![\w.>:])(?:::)?"  # a function of the C library, not a method or a name in a namespace
# name, what is found, what makes it bounded (looked for in the statement), what to do
RULES = [
    ("wait", r"(?:\.|->)wait\(", None, "wait_for or wait_until"),
    ("Wait", r"(?:\.|->)Wait\(\)", None, "Shutdown with a deadline before it"),
    ("join", r"(?:\.|->)join\(\)", None, "say what ends the thread"),
    ("thread", r"std::j?thread\s+\w+\s*[;({=]|<std::j?thread>\s+\w+", None, "its destructor joins: say what ends the thread"),
    ("future", r"std::(?:shared_)?future<|std::async\(|std::(?:latch|barrier|counting_semaphore|binary_semaphore)\b", None,
     "a condition with wait_for, or say what bounds it"),
    ("waitpid", FREE + r"(?:waitpid|wait3|wait4|waitid)\(", r"WNOHANG", "WNOHANG in a loop with an end"),
    ("poll", FREE + r"(?:poll|ppoll|epoll_wait|epoll_pwait)\([^;]*?(?:,\s*-1\s*\)|,\s*(?:nullptr|NULL)\s*,)", None, "a time-out that is not -1"),
    ("select", FREE + r"p?select\(", None, "poll with a time-out"),
    ("lock file", FREE + r"flock\(", r"LOCK_NB|LOCK_UN", "LOCK_NB"),
    ("lock file", r"\bF_SETLKW\b|" + FREE + r"lockf\(", None, "F_SETLK"),
    ("socket", FREE + r"(?:accept4?|recv|recvfrom|recvmsg)\(", r"MSG_DONTWAIT", "poll before it"),
    ("pipe", r"(?:=|&&|\|\|)\s*(?:::)?read\(", None, "poll before it, or say that it is a file"),
    ("signal", FREE + r"(?:sigwait|sigwaitinfo|pause|sem_wait|pthread_join|pthread_cond_wait)\(", None, "the form with a time"),
    ("program", FREE + r"(?:system|popen)\(", None, "posix_spawn and a deadline"),
    ("rpc", r"grpc::ClientContext\s+\w+\s*;|make_(?:unique|shared)<grpc::ClientContext>", r"set_deadline", "set_deadline"),
    ("queue", r"(?:\.|->)Next\(&", None, "AsyncNext with a deadline"),
    ("for ever", r"gpr_inf_future", None, "a time"),
    ("device", r"\bcuda(?:Stream|Device|Event)Synchronize\(", None, "say what bounds the work"),
]
RULES = [(name, re.compile(pattern), re.compile(bound) if bound else None, advice) for name, pattern, bound, advice in RULES]
RPC_LINES = 6  # from the context to its deadline


def code_lines(text):
    """The lines without comments and without what stands in quotes."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    text = re.sub(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*.*?\*/', blank, text, flags=re.S)
    return text.split("\n")


def statement(lines, at):
    """From a line to the semicolon that ends what begins there."""
    out = []
    for line in lines[at:at + 8]:
        out.append(line)
        if ";" in line or "{" in line:
            break
    return " ".join(out)


def findings(text):
    """(line number from 1, what) of one source."""
    raw, lines = text.split("\n"), code_lines(text)
    marks = {i: m.group(1) for i, line in enumerate(raw) if (m := MARK.search(line))}
    used, out = set(), []
    for i, line in enumerate(lines):
        for name, pattern, bound, advice in RULES:
            match = pattern.search(line) or (name == "poll" and pattern.search(statement(lines, i)) and re.search(r"poll|epoll_p?wait", line))
            if not match:
                continue
            near = " ".join(lines[i:i + RPC_LINES]) if name == "rpc" else statement(lines, i)
            if bound is not None and bound.search(near):
                continue
            mark = i if i in marks else i - 1 if i - 1 in marks and not lines[i - 1].strip() else None
            if mark is None:
                out.append((i + 1, f"{name}: this wait has no end of its own ({line.strip()}); {advice}, or a remark `// waits: what bounds it`"))
                continue
            used.add(mark)
            if len(marks[mark]) < NO_REASON:
                out.append((i + 1, f"{name}: `waits: {marks[mark]}` is no reason; say what bounds this wait"))
    for i in sorted(set(marks) - used):
        out.append((i + 1, "remark: `waits:` stands beside no wait that would need it; take it away or move it"))
    return sorted(out)


def main(folders):
    found, files = 0, 0
    for folder in folders:
        for path in sorted(pathlib.Path(folder).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            files += 1
            for line, what in findings(path.read_text(encoding="utf-8")):
                print(f"{path}:{line}: {what}")
                found += 1
    print(f"waits: {files} sources, {found} findings")
    return 1 if found or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
