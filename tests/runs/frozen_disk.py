"""A disk that can be frozen: the calls named (its syncs, or its reads) of a process and its children wait until it thaws.

A seccomp filter hands these calls to us (seccomp_unotify(2)); we let them through, or leave them waiting. What is written stays
readable for everybody, as on a disk that has stopped answering behind the page cache."""
import ctypes
import fcntl
import os
import select
import socket
import struct
import threading

LIBC = ctypes.CDLL(None, use_errno=True)
SYSCALL_SECCOMP = 317  # x86-64
SYNCS = (74, 75)  # fsync, fdatasync
READS = (17,)  # pread64
ALLOW, NOTIFY = 0x7FFF0000, 0x7FC00000
RECV, SEND = 0xC0502100, 0xC0182101


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def install_filter(calls):
    """In the child, before exec. Returns the descriptor on which its calls are told; -1: not possible here."""
    rules = b"".join(struct.pack("=HBBI", *r) for r in [
        (0x20, 0, 0, 0),  # load the number of the call
        *((0x15, len(calls) - i, 0, call) for i, call in enumerate(calls)),  # equal: to the last line
        (0x06, 0, 0, ALLOW),
        (0x06, 0, 0, NOTIFY)])
    buffer = ctypes.create_string_buffer(rules, len(rules))
    program = Program(len(rules) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    LIBC.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    return LIBC.syscall(SYSCALL_SECCOMP, 1, 8, ctypes.byref(program))  # SET_MODE_FILTER, NEW_LISTENER


class FrozenDisk:
    """Pass `preexec` to subprocess.Popen and call `begin` after it. False: this kernel cannot do it."""

    def __init__(self, calls=SYNCS):
        self.calls = calls
        self.ours, self.theirs = socket.socketpair()
        self.frozen = threading.Event()
        self.ended = threading.Event()
        self.waiting = []  # calls that came while it was frozen

    def preexec(self):
        fd = install_filter(self.calls)
        if fd >= 0:
            socket.send_fds(self.theirs, [b"x"], [fd])
            os.close(fd)
        else:
            self.theirs.send(b"-")

    def begin(self):
        data, fds, _, _ = socket.recv_fds(self.ours, 1, 1)
        if not fds:
            return False
        self.fd = fds[0]
        threading.Thread(target=self.serve, daemon=True).start()
        return True

    def freeze(self):
        self.frozen.set()

    def thaw(self):
        self.frozen.clear()

    def end(self):
        self.ended.set()
        self.ours.close()
        self.theirs.close()

    def serve(self):
        while not self.ended.is_set():
            if not self.frozen.is_set():
                while self.waiting:
                    self.let_through(self.waiting.pop())
            if not select.select([self.fd], [], [], 0.02)[0]:
                continue
            call = bytearray(80)
            try:
                fcntl.ioctl(self.fd, RECV, call)
            except OSError:
                self.ended.wait(0.02)  # whoever called has died meanwhile
                continue
            self.waiting.append(struct.unpack_from("=Q", call)[0])

    def let_through(self, call):
        try:
            fcntl.ioctl(self.fd, SEND, struct.pack("=QqiI", call, 0, 0, 1))
        except OSError:
            pass  # its process is gone
