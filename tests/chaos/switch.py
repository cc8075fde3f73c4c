"""A switch between workers and controller, in user space: every connection goes through it and can be disturbed.

Each worker dials a port of its own here (`listen`), so a fault strikes one worker. Directions are "up" (worker to controller)
and "down". A device worker tells the controller where its weights server listens; the switch rewrites that address in
passing to the same port of 127.0.0.2, where it listens too, so transfers of weights go through it under the name
NAME/weights ("up" is then the side that dials).

Calls come from the test's thread; the switch runs in a thread of its own.
"""
import asyncio
import re
import socket
import struct
import threading

ADDRESS = re.compile(rb"127\.0\.0\.1:(\d{4,5})")
DIRECTIONS = ("up", "down")


def abort(writer):
    """Closes with RST."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Direction:
    """One direction of one connection."""

    def __init__(self):
        self.queue = asyncio.Queue()  # (when to send it, bytes or None for the end)
        self.open = asyncio.Event()
        self.open.set()
        self.delay_s = 0.0
        self.piece = 0  # bytes that go at once, 10 ms apart; 0: all
        self.swallow = False
        self.bytes = 0


class Connection:
    def __init__(self, port, near, far):
        self.port, self.near, self.far = port, near, far  # (reader, writer) of the dialling side and of the other
        self.ways = {d: Direction() for d in DIRECTIONS}
        self.ended = set()  # directions whose sender has closed

    async def run(self):
        tasks = [asyncio.ensure_future(c) for c in (
            self.read("up", self.near[0]), self.write("up", self.far[1]), self.read("down", self.far[0]), self.write("down", self.near[1]))]
        try:
            await asyncio.gather(*tasks)
        except (OSError, asyncio.CancelledError):
            pass  # one side has gone, or the switch is closed: so goes the other
        finally:
            for task in tasks:
                task.cancel()
            self.close(reset=False)

    async def read(self, name, reader):
        way, loop = self.ways[name], asyncio.get_running_loop()
        while True:
            data = await reader.read(1 << 16)
            if not data:
                self.ended.add(name)
            if way.swallow and not data and len(self.ended) < 2:
                await asyncio.Event().wait()  # waits: cancelled with the connection; the end is swallowed as well
            if way.swallow and data:
                continue
            if name == "up" and self.port.rewrite:
                data = await self.port.rewrite(data)
            way.bytes += len(data)
            way.queue.put_nowait((loop.time() + way.delay_s, data))
            if not data:
                return

    async def write(self, name, writer):
        way, loop = self.ways[name], asyncio.get_running_loop()
        while True:
            when, data = await way.queue.get()
            await asyncio.sleep(max(0.0, when - loop.time()))
            await way.open.wait()  # waits: opened or cancelled by the test
            if len(self.ended) == 2:
                raise ConnectionResetError
            if way.swallow:
                continue
            if not data:
                writer.write_eof()
                return
            while way.piece and len(data) > way.piece:
                writer.write(data[:way.piece])
                data = data[way.piece:]
                await asyncio.sleep(0.01)
            writer.write(data)
            await writer.drain()

    def close(self, reset):
        for _, writer in (self.near, self.far):
            abort(writer) if reset else writer.close()
        self.port.connections.discard(self)


class Port:
    def __init__(self, name, upstream, rewrite=None):
        self.name, self.upstream, self.rewrite = name, upstream, rewrite
        self.connections = set()
        self.refusing = None  # or "reset", "silent"
        self.delay_s, self.piece = 0.0, 0  # of connections to come
        self.dials = self.refused = 0
        self.server = None

    async def accept(self, reader, writer):
        self.dials += 1
        mode = self.refusing
        target = None if mode else self.upstream()
        try:
            if mode == "silent":  # a peer that took the connection and says nothing
                self.refused += 1
                while self.refusing == "silent":
                    await asyncio.sleep(0.02)
            if target is None:
                raise OSError("refused")
            far = await asyncio.open_connection(*target)
        except OSError:
            self.refused += mode == "reset"
            return abort(writer)
        connection = Connection(self, (reader, writer), far)
        for way in connection.ways.values():
            way.delay_s, way.piece = self.delay_s, self.piece
        self.connections.add(connection)
        await connection.run()


class Switch:
    def __init__(self):
        self.ports = {}
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout=10)

    def listen(self, name, upstream, weights=False):
        """Opens a port for `name`; `upstream()` says (host, port) for each new connection, None: nobody is there."""
        port = Port(name, upstream, None)
        if weights:
            port.rewrite = lambda data: self.rewrite(name, data)
        self.ports[name] = port
        return self.call(self.open(port, "127.0.0.1", 0))

    async def open(self, port, host, number):
        port.server = await asyncio.start_server(port.accept, host, number)
        return "{}:{}".format(*port.server.sockets[0].getsockname())

    async def rewrite(self, name, data):
        for match in ADDRESS.finditer(data):
            number = int(match.group(1))
            if any(p.server is not None and p.server.sockets[0].getsockname() == ("127.0.0.1", number) for p in self.ports.values()):
                continue  # the address that the worker dialled, in the head of its call
            old = self.ports.get(name + "/weights")
            if old is None or old.upstream()[1] != number:
                if old is not None:
                    old.server.close()
                port = self.ports[name + "/weights"] = Port(name + "/weights", lambda n=number: ("127.0.0.1", n))
                await self.open(port, "127.0.0.2", number)
            data = data[:match.start()] + b"127.0.0.2" + data[match.start() + 9:]
        return data

    # --- faults; each is over when the call that undoes it was made, or with its connection ---

    def ways(self, name, directions):
        return [c.ways[d] for c in list(self.ports[name].connections) for d in directions]

    def on_loop(self, function):
        async def run():
            return function()
        return self.call(run())

    def delay(self, name, seconds, directions=DIRECTIONS):
        """Every byte comes so much later, on connections that are there and those to come."""
        def set_delay():
            self.ports[name].delay_s = seconds
            for way in self.ways(name, directions):
                way.delay_s = seconds
        self.on_loop(set_delay)

    def trickle(self, name, piece):
        """So many bytes every 10 ms."""
        def set_piece():
            self.ports[name].piece = piece
            for way in self.ways(name, DIRECTIONS):
                way.piece = piece
        self.on_loop(set_piece)

    def hold(self, name, directions=DIRECTIONS):
        """Bytes wait in the switch, as in a network that sends them again later."""
        self.on_loop(lambda: [way.open.clear() for way in self.ways(name, directions)])

    def release(self, name, directions=DIRECTIONS):
        self.on_loop(lambda: [way.open.set() for way in self.ways(name, directions)])

    def swallow(self, name, directions=DIRECTIONS):
        """Bytes and the end of these connections are lost: half-open, or dead and nobody was told."""
        def set_swallow():
            for way in self.ways(name, directions):
                way.swallow = True
                way.open.set()
        self.on_loop(set_swallow)

    def cut(self, name, reset=True):
        """Closes the connections; with `reset` both sides get RST and what was under way is lost."""
        self.on_loop(lambda: [c.close(reset) for c in list(self.ports[name].connections)])

    def cut_near(self, name):
        """Only the side that dialled learns of the end (RST): the other believes that the connection lives."""
        def cut():
            for c in list(self.ports[name].connections):
                for way in c.ways.values():
                    way.swallow = True
                abort(c.near[1])
        self.on_loop(cut)

    def open_connections(self, name):
        """Those whose far side (the controller's) has not closed."""
        return self.on_loop(lambda: sum("down" not in c.ended for c in self.ports[name].connections))

    def bytes(self, name, direction):
        """That went through the open connections."""
        return self.on_loop(lambda: sum(c.ways[direction].bytes for c in self.ports[name].connections))

    def refuse(self, name, mode="reset"):
        """New dials are reset, or ("silent") taken and left without an answer; None: let through again."""
        def set_refusing():
            self.ports[name].refusing = mode
        self.on_loop(set_refusing)

    def heal(self, name):
        """Undoes delay, hold and refusal. What was swallowed stays so."""
        def undo():
            port = self.ports[name]
            port.refusing, port.delay_s, port.piece = None, 0.0, 0
            for way in self.ways(name, DIRECTIONS):
                way.delay_s, way.piece = 0.0, 0
                way.open.set()
        self.on_loop(undo)

    def close(self):
        async def stop():
            for port in self.ports.values():
                if port.server is not None:
                    port.server.close()
                for connection in list(port.connections):
                    connection.close(reset=True)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0.05)
        try:
            self.call(stop())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(timeout=5)
            self.loop.close()
