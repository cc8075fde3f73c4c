"""Hosts that are network namespaces, and a switch between them in user space: it delays, loses, slows down and cuts what they say.

Each host has one TUN device ("wire"). What a host sends comes to this process, which hands it to the host that it is for, so
nothing of the kernel's is needed but TUN (netem is missing in many). A path leads from one host to another; those of the two
directions are disturbed apart. Needs root.
"""
import fcntl
import heapq
import itertools
import os
import random
import selectors
import shutil
import signal
import struct
import subprocess
import threading
import time

TUNSETIFF = 0x400454CA
TUN_WITHOUT_HEADER = 0x1001
MTU = 9000
QUEUE_S = 0.5  # what would wait longer for a slow link is lost, as in a switch whose memory is full
NUMBERS = itertools.count()


def ip(*args):
    subprocess.run(["ip", *args], check=True, capture_output=True, timeout=20)


def why_not():
    """Why there can be no network here; "" where there can."""
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("ip", "nsenter", "unshare")):
        return "network namespaces need root, iproute2 and util-linux"
    try:
        network = Network(1)
        try:
            subprocess.run(network.command(0, ["true"]), check=True, capture_output=True, timeout=20)
        finally:
            network.close()
        return ""
    except (subprocess.SubprocessError, OSError) as error:  # root of a container may not
        return f"network namespaces and TUN devices cannot be made: {error}"


class Trouble:
    """What is wrong with some paths until it is undone; several add up."""

    def __init__(self, cut=False, delay_s=0.0, jitter_s=0.0, loss=0.0, bytes_per_s=0):
        self.cut, self.delay_s, self.jitter_s, self.loss, self.bytes_per_s = cut, delay_s, jitter_s, loss, bytes_per_s


class Path:
    def __init__(self):
        self.troubles = ()
        self.free = 0.0  # when all that was sent before is through
        self.carried = self.lost = 0  # packets

    def arrival(self, now, size, rng):
        """When a packet that is sent now arrives; None: never."""
        delay, begin = 0.0, now
        for t in self.troubles:
            if t.cut or rng.random() < t.loss:
                return None
            delay += t.delay_s + rng.random() * t.jitter_s
            if t.bytes_per_s:
                begin = max(now, self.free)
                if begin > now + QUEUE_S:
                    return None
                begin += size / t.bytes_per_s
                self.free = begin
        return begin + delay


class Network:
    def __init__(self, hosts, seed=0):
        number = next(NUMBERS)
        self.names = [f"tpn{os.getpid()}-{number}-{i}" for i in range(hosts)]
        self.paths = {(a, b): Path() for a in range(hosts) for b in range(hosts) if a != b}
        self.rng, self.lock, self.ended = random.Random(seed), threading.Lock(), threading.Event()
        self.wires = []
        self.carrier = threading.Thread(target=self.carry, daemon=True)
        try:
            for i, name in enumerate(self.names):
                self.wires.append(self.plug(name, self.address(i)))
            self.inodes = {os.stat(f"/run/netns/{name}").st_ino: i for i, name in enumerate(self.names)}
        except BaseException:
            self.close()
            raise
        self.carrier.start()

    def plug(self, name, address):
        ip("netns", "add", name)
        wire = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        device = f"tpn{next(NUMBERS)}.{os.getpid()}"[:15]
        fcntl.ioctl(wire, TUNSETIFF, struct.pack("16sH22x", device.encode(), TUN_WITHOUT_HEADER))
        ip("link", "set", device, "netns", name, "name", "wire", "mtu", str(MTU))
        ip("-n", name, "addr", "add", address + "/24", "dev", "wire")
        ip("-n", name, "link", "set", "wire", "up")
        ip("-n", name, "link", "set", "lo", "up")
        return wire

    @staticmethod
    def address(host):
        return f"10.93.0.{host + 1}"

    def command(self, host, command):
        """It runs on this host, with a /dev/shm of its own; the process that is started becomes the program."""
        return ["nsenter", f"--net=/run/netns/{self.names[host]}", "unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh", *command]

    def carry(self):
        late, order = [], itertools.count()  # a heap of (arrival, order, host, packet)
        selector = selectors.DefaultSelector()
        for host, wire in enumerate(self.wires):
            selector.register(wire, selectors.EVENT_READ, host)
        while not self.ended.is_set():
            wait = 0.1 if not late else max(0.0, min(0.1, late[0][0] - time.monotonic()))
            for key, _ in selector.select(wait):
                for packet in self.read(key.fd):
                    if packet[0] >> 4 != 4 or packet[16:19] != b"\x0a\x5d\x00":
                        continue  # not IPv4, or a broadcast
                    to, now = packet[19] - 1, time.monotonic()
                    path = self.paths.get((key.data, to))
                    arrival = path and path.arrival(now, len(packet), self.rng)
                    if arrival is None:
                        if path:
                            path.lost += 1
                        continue
                    path.carried += 1
                    if arrival <= now:
                        self.write(to, packet)
                    else:
                        heapq.heappush(late, (arrival, next(order), to, packet))
            now = time.monotonic()
            while late and late[0][0] <= now:
                self.write(*heapq.heappop(late)[2:])
        selector.close()

    @staticmethod
    def read(wire):
        for _ in range(64):
            try:
                yield os.read(wire, MTU + 100)
            except OSError:  # nothing more
                return

    def write(self, host, packet):
        try:
            os.write(self.wires[host], packet)
        except OSError:  # it takes none just now, so it is lost
            pass

    # --- trouble; over when it is undone ---

    def disturb(self, paths, **how):
        trouble, paths = Trouble(**how), list(paths)
        with self.lock:
            for p in paths:
                self.paths[p].troubles += (trouble,)

        def undo():
            with self.lock:
                for p in paths:
                    self.paths[p].troubles = tuple(t for t in self.paths[p].troubles if t is not trouble)
        return undo

    def between(self, some, one_way=False):
        """The paths from these hosts to all others, and back."""
        return [(a, b) for a, b in self.paths if (a in some and b not in some) or (not one_way and b in some and a not in some)]

    def heal(self):
        with self.lock:
            for path in self.paths.values():
                path.troubles = ()

    # --- what runs on hosts ---

    def processes(self, host):
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if self.inodes.get(os.stat(f"/proc/{pid}/ns/net").st_ino) == host:
                    found.append(int(pid))
            except OSError:  # it has gone, or is going
                pass
        return found

    def signal(self, host, number):
        """All of them, also those that are started meanwhile."""
        told = set()
        while more := set(self.processes(host)) - told:
            for pid in more:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            told |= more

    def kill(self, host):
        self.signal(host, signal.SIGSTOP)  # nobody learns of another's death, and nobody starts another one
        self.signal(host, signal.SIGKILL)

    def close(self):
        self.ended.set()
        if self.carrier.is_alive():
            self.carrier.join(5)
        for wire in self.wires:
            os.close(wire)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)
