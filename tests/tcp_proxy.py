"""A TCP port that passes everything on to a socket of this machine, until it is disturbed.

    python tcp_proxy.py SOCKET

Prints its port. A line on stdin is an order, answered with a line: `hold` passes nothing on any
more and yet accepts connections, `go` goes on, `reset` resets every connection.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys

BYTES = 1 << 16


def answer(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Proxy:
    def __init__(self, target: str) -> None:
        self._target = target
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        answer(server.sockets[0].getsockname()[1])
        lines = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(lines)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while order := (await lines.readline()).decode().strip():
            getattr(self, f"_{order}")()
            answer(order)

    def _hold(self) -> None:
        self._flows.clear()

    def _go(self) -> None:
        self._flows.set()

    def _reset(self) -> None:
        for writer in list(self._writers):
            raw = writer.get_extra_info("socket")
            if raw.family != socket.AF_UNIX:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flows.wait()
        try:
            there = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while data := await reader.read(BYTES):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # either side has gone
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


if __name__ == "__main__":
    asyncio.run(Proxy(sys.argv[1]).serve())
