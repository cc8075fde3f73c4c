"""A place for programs that nobody trusts: bubblewrap, with a work folder that stays from command to command.

    with Sandbox() as box:
        box.write("a.txt", "one\\n")
        print(box.run("wc -l a.txt").output)

What a command may touch is said in docs/tools.md, and tests/runs/tools_test.py attacks it. The work folder is a tmpfs in a
mount namespace that a process of ours keeps; it is gone with that process, and that one with this one, however it ends.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import shutil
import signal
import struct
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union


class SandboxRefused(Exception):
    """This machine has no sandbox: what is not trusted does not run here."""


class SandboxBroken(Exception):
    """It is gone, or cannot be made now: a failure of the environment (env_infra), not of the policy."""


class CannotWrite(Exception):
    """The work folder takes no such file, as commands have left it: full, or closed to its owner."""


@dataclass(frozen=True)
class Limits:
    """Of one command; work_bytes of the folder, which outlives it."""

    seconds: float = 10  # by the clock; then all of it is killed
    cpu_seconds: int = 10  # of each process
    memory_bytes: int = 512 << 20  # address space of each process, and resident memory of all, which is looked at 10 times a second
    processes: int = 64
    file_bytes: int = 16 << 20  # of each file
    open_files: int = 64
    work_bytes: int = 64 << 20  # of the work folder; as much again of /tmp and of /dev/shm, for the time of the command
    output_bytes: int = 64 << 10  # that are kept; the rest is read and dropped


@dataclass(frozen=True)
class Ran:
    status: int  # of the exit; 128 + n: ended by signal n
    output: str  # standard output and error, as they came
    cut: bool = False  # there was more
    killed: str = ""  # why, where it was: "10 s are over"


# Of an architecture: the kernel's name of it (AUDIT_ARCH_*), socket and socketpair, and what is refused whole: keyctl, add_key, request_key,
# bpf, perf_event_open, userfaultfd and io_uring_setup, which namespaces do not divide or which have more of the kernel behind them
# than a tool needs.
_CALLS = {
    "x86_64": (0xC000003E, (41, 53), (250, 248, 249, 321, 298, 323, 425)),
    "aarch64": (0xC00000B7, (198, 199), (219, 217, 218, 280, 241, 282, 425)),
}
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK; others (AF_VSOCK) are not of a network namespace


def _filter() -> bytes:
    """Of system calls, for seccomp: instructions of BPF (code, jump if so, jump if not, operand) that read struct seccomp_data."""
    arch, sockets, refused = _CALLS[os.uname().machine]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06  # LD|W|ABS, JMP|JEQ|K, JMP|JGE|K, RET|K
    allow, no_permission, no_family = 0x7FFF0000, 0x00050001, 0x00050061  # ALLOW, ERRNO with EPERM, with EAFNOSUPPORT
    lines = [(load, 0, 0, 4), (equal, 1, 0, arch), (give, 0, 0, no_permission),  # calls of a second architecture (32 bits) have other numbers
             (load, 0, 0, 0), (at_least, 0, 1, 1 << 30), (give, 0, 0, no_permission)]  # and so do those of x32
    for number in refused:
        lines += [(equal, 0, 1, number), (give, 0, 0, no_permission)]
    lines += [(equal, 2, 0, sockets[0]), (equal, 1, 0, sockets[1]), (give, 0, 0, allow), (load, 0, 0, 16)]
    for family in _FAMILIES:
        lines += [(equal, 0, 1, family), (give, 0, 0, allow)]
    lines += [(give, 0, 0, no_family)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _file(content: bytes) -> int:
    """A descriptor that content is read from."""
    made = os.memfd_create("tidepool_env")
    os.write(made, content)
    os.lseek(made, 0, os.SEEK_SET)
    return made


_PATH = "/usr/local/bin:/usr/bin:/bin"
_MOST_READ = 1 << 20
_uids: set = set()
_lock = threading.Lock()


def _user() -> Dict[str, Any]:
    """Whom it runs as. Root's processes cannot be counted (RLIMIT_NPROC), so root gives each sandbox a user of its own."""
    if os.geteuid() != 0:
        return {}
    with open("/proc/self/uid_map", encoding="ascii") as file:  # a container may have few
        first, _, count = max((tuple(map(int, line.split())) for line in file), key=lambda row: row[2])
    if count < 1024:
        return {}
    with _lock:
        while True:
            uid = random.SystemRandom().randrange(first + count // 4, min(first + count - 1, (1 << 31) - 2))
            if uid not in _uids:
                _uids.add(uid)
                return {"user": uid, "group": uid, "extra_groups": []}


def _view(read_only: Sequence[str]) -> List[str]:
    words = ["--unshare-all", "--unshare-user", "--cap-drop", "ALL", "--new-session", "--hostname", "sandbox", "--clearenv", "--setenv", "PATH", _PATH,
             "--setenv", "HOME", "/work", "--setenv", "LANG", "C.UTF-8", "--ro-bind", "/usr", "/usr"]
    for link in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink("/" + link):
            words += ["--symlink", os.readlink("/" + link), "/" + link]
        elif os.path.isdir("/" + link):
            words += ["--ro-bind", "/" + link, "/" + link]
    for path in ("/etc/alternatives", "/etc/ld.so.cache", *read_only):
        words += ["--ro-bind-try", path, path]
    return words


def _environment() -> Dict[str, str]:
    return {"PATH": _PATH}


def _need(program: str) -> str:
    found = shutil.which(program, path=_PATH + ":/usr/sbin:/sbin")
    if found is None:
        package = "bubblewrap" if program == "bwrap" else "util-linux"
        raise SandboxRefused(f"untrusted tools are refused: there is no {program} on this machine; apt-get install {package} (Tidepool's scripts/setup --tools does)")
    return found


_works: Optional[bool] = None


def require() -> None:
    """SandboxRefused, with what is missing, where this machine has no sandbox."""
    global _works
    for program in ("bwrap", "nsenter", "prlimit"):
        _need(program)
    if _works:
        return
    if os.uname().machine not in _CALLS:
        raise SandboxRefused(f"untrusted tools are refused: the filter of system calls knows {' and '.join(_CALLS)}, and this machine is {os.uname().machine}")
    filters = _file(_filter())
    try:
        made = subprocess.run([_need("bwrap"), *_view(()), "--proc", "/proc", "--dev", "/dev", "--die-with-parent", "--seccomp", str(filters), "--", "/usr/bin/env", "true"],
                              capture_output=True, text=True, timeout=20, env=_environment(), pass_fds=(filters,), **_user())
        said = made.stderr.strip() or f"exit status {made.returncode}"
        ok = made.returncode == 0
    except (OSError, subprocess.SubprocessError) as problem:
        ok, said = False, str(problem)
    finally:
        os.close(filters)
    if not ok:
        raise SandboxRefused(
            f"untrusted tools are refused: bubblewrap gets no user namespace here ({said}); as root: sysctl -w user.max_user_namespaces=15000, and where "
            "they exist kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0; in a container, allow unshare and mount "
            "(its seccomp and AppArmor profiles)")
    _works = True


def _stat(pid: str) -> Optional[Tuple[int, int]]:
    """Parent and resident pages."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[1]), int(fields[21])
    except (OSError, IndexError, ValueError):  # it has ended
        return None


def _resident(of: int) -> int:
    """Bytes of a process and all that descend from it."""
    children: Dict[int, List[int]] = {}
    pages: Dict[int, int] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        found = _stat(pid)
        if found is not None:
            children.setdefault(found[0], []).append(int(pid))
            pages[int(pid)] = found[1]
    total, left = 0, [of]
    while left:
        pid = left.pop()
        total += pages.get(pid, 0)
        left += children.get(pid, [])
    return total * os.sysconf("SC_PAGE_SIZE")


class Sandbox:
    """Of one thread at a time.

    limits     of each command
    read_only  further files and folders that commands may read, at the same place; /usr they always may
    """

    def __init__(self, limits: Limits = Limits(), read_only: Sequence[str] = ()) -> None:
        require()
        for path in read_only:
            if not os.path.isabs(path) or not os.path.exists(path):
                raise ValueError(f"read_only: {path!r} is no absolute path of something that exists")
        self._limits, self._read_only = limits, tuple(read_only)
        self._user = _user()
        told, tells = os.pipe()
        # Ends when its standard input does, which only this process has the other end of.
        self._keeper = subprocess.Popen(
            [_need("bwrap"), *_view(self._read_only), "--proc", "/proc", "--dev-bind", "/dev", "/dev", "--dir", "/tmp", "--size", str(limits.work_bytes), "--tmpfs", "/work",
             "--info-fd", str(tells), "--", "/usr/bin/cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=(tells,), cwd="/", env=_environment(), start_new_session=True, **self._user)
        os.close(tells)
        try:
            self._pid = self._made(told)
        except (OSError, ValueError, KeyError) as problem:
            self.close()
            raise SandboxBroken(f"bubblewrap has made no sandbox: {problem}") from None
        finally:
            os.close(told)

    def _made(self, told: int) -> int:
        """Its process, once its folders are made: which is when its program answers."""
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        os.write(self._keeper.stdin.fileno(), b"?")
        with selectors.DefaultSelector() as ready:
            ready.register(self._keeper.stdout, selectors.EVENT_READ)
            if not ready.select(20) or os.read(self._keeper.stdout.fileno(), 1) != b"?":
                raise OSError("no answer")
        return int(json.loads(os.read(told, 4096))["child-pid"])

    def _words(self, command: Sequence[str], filters: int, arguments: int) -> List[str]:
        """The command line that runs a command in here; what is passed as descriptors is the filter and further arguments."""
        one, most = self._limits, str(self._limits.work_bytes)
        limits = [f"--{name}={value}:{value}" for name, value in (("cpu", one.cpu_seconds), ("as", one.memory_bytes), ("nproc", one.processes),
                                                                   ("fsize", one.file_bytes), ("nofile", one.open_files), ("core", 0))]
        return [_need("nsenter"), "-t", str(self._pid), "-U", "-m", "-p", "--preserve-credentials", "--", _need("bwrap"), *_view(self._read_only),
                "--uid", "1000", "--gid", "1000", "--disable-userns", "--die-with-parent", "--proc", "/proc", "--dev", "/dev", "--size", most, "--tmpfs", "/dev/shm", "--size", most, "--tmpfs", "/tmp",
                "--bind", "/work", "/work", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/work",
                "--seccomp", str(filters), "--args", str(arguments), "--", _need("prlimit"), *limits, "--", *command]

    def start(self, command: Sequence[str], environment: Optional[Dict[str, str]] = None, **more: Any) -> subprocess.Popen:
        """Runs it beside what runs here, with further variables; who asks for it ends it, and looks at its memory."""
        if self._keeper.poll() is not None:
            raise SandboxBroken("the sandbox is gone")
        named = [word for key, value in (environment or {}).items() for word in ("--setenv", key, value)]
        if any("\0" in word for word in named):
            raise ValueError("a variable cannot have the character NUL")
        filters = _file(_filter())
        arguments = _file("\0".join([*named, ""]).encode())  # everybody can read a command line, and a variable may be a secret
        try:
            return subprocess.Popen(self._words(command, filters, arguments), cwd="/", env=_environment(), start_new_session=True,
                                    pass_fds=(filters, arguments), **self._user, **more)
        finally:
            os.close(filters)
            os.close(arguments)

    def run(self, command: Union[str, Sequence[str]], input: str = "", output_bytes: int = 0) -> Ran:
        """A line for the shell, or a program with its arguments; ended, with all that it has started, when it returns."""
        limits = self._limits
        most = output_bytes or limits.output_bytes
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if any("\0" in word for word in words):
            return Ran(2, "a command cannot have the character NUL\n")
        process = self.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdin is not None and process.stdout is not None
        kept, dropped, killed, to_say = bytearray(), False, "", memoryview(input.encode())
        until, look = time.monotonic() + limits.seconds, 0.0
        try:
            with selectors.DefaultSelector() as ready:
                os.set_blocking(process.stdin.fileno(), False)
                ready.register(process.stdout, selectors.EVENT_READ)
                if to_say:
                    ready.register(process.stdin, selectors.EVENT_WRITE)
                else:
                    process.stdin.close()
                while True:
                    now = time.monotonic()
                    if now > until:
                        killed = f"{limits.seconds:g} s are over"
                        break
                    if now > look:
                        look = now + 0.1
                        if _resident(process.pid) > limits.memory_bytes:
                            killed = f"it took more than {limits.memory_bytes >> 20} MiB"
                            break
                    events = [key.fileobj for key, _ in ready.select(min(0.1, until - now))]
                    if process.stdin in events:
                        try:
                            to_say = to_say[os.write(process.stdin.fileno(), to_say[:4096]):]
                        except BrokenPipeError:  # it reads no more
                            to_say = to_say[:0]
                        if not to_say:
                            ready.unregister(process.stdin)
                            process.stdin.close()
                    if process.stdout in events:
                        piece = os.read(process.stdout.fileno(), 1 << 16)
                        if not piece:
                            break
                        dropped = dropped or len(piece) > most - len(kept)
                        kept += piece[:most - len(kept)]
        finally:
            self._end(process, patience_s=0 if killed else 1)
        status = process.returncode
        return Ran(128 - status if status < 0 else status, kept.decode(errors="replace"), dropped, killed)

    def _end(self, process: subprocess.Popen, patience_s: float) -> None:
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            _kill(process)  # bubblewrap and all in its namespace go with it
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()

    def write(self, path: str, text: str) -> None:
        """A file of the work folder; folders on the way are made. CannotWrite where it takes none."""
        made = self.run(["/bin/sh", "-c", 'mkdir -p "$(dirname -- "$1")" && cat > "$1"', "sh", path], input=text)
        if self._keeper.poll() is not None:
            raise SandboxBroken("the sandbox is gone")
        if made.status != 0 or made.killed:
            raise CannotWrite(f"{path} cannot be written: {made.killed or made.output}")

    def read(self, path: str) -> Optional[str]:
        """None: there is no such file that can be read, or it is longer than 1 MiB."""
        made = self.run(["/bin/cat", "--", path], output_bytes=_MOST_READ)
        if self._keeper.poll() is not None:
            raise SandboxBroken("the sandbox is gone")
        return None if made.status != 0 or made.killed or made.cut else made.output

    def close(self) -> None:
        _kill(self._keeper)  # all namespaces below its own go with it
        for stream in (self._keeper.stdin, self._keeper.stdout):
            if stream is not None:
                stream.close()
        with _lock:
            _uids.discard(self._user.get("user"))

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _kill(process: subprocess.Popen) -> None:
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:  # the kernel's business now
        pass
