"""Make addresses of AWS reachable on a machine of a rehearsal: each is forwarded to a port at the gateway.

Usage: `python3 relay.py GATEWAY tcp:ADDRESS:PORT:GATEWAY_PORT udp:ADDRESS:PORT:GATEWAY_PORT...`
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from functools import partial

CHUNK = 1 << 16
ANSWER_TIMEOUT_S = 5.0


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction of a connection."""
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()


async def forward(gateway: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Connect a client to a port at the gateway."""
    try:
        far_reader, far_writer = await asyncio.open_connection(gateway, port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
    for stream in (writer, far_writer):
        stream.close()


class Datagrams(asyncio.DatagramProtocol):
    """Queries that are forwarded to a port at the gateway, each with its own socket."""

    def __init__(self, gateway: str, port: int) -> None:
        self.target = (gateway, port)
        self.tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]  # asyncio gives datagram protocols this type
        self.transport = transport

    def datagram_received(self, data: bytes, client: tuple[str, int]) -> None:
        task = asyncio.ensure_future(self.ask(data, client))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def ask(self, data: bytes, client: tuple[str, int]) -> None:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        class Once(asyncio.DatagramProtocol):
            def datagram_received(self, reply: bytes, _: object) -> None:
                if not answer.done():
                    answer.set_result(reply)

        upstream, _ = await asyncio.get_running_loop().create_datagram_endpoint(Once, remote_addr=self.target)
        try:
            upstream.sendto(data)
            self.transport.sendto(await asyncio.wait_for(answer, ANSWER_TIMEOUT_S), client)
        except (TimeoutError, OSError):
            pass
        finally:
            upstream.close()


async def main(gateway: str, *rules: str) -> None:
    """Add each address to the loopback interface and forward it until the machine ends."""
    loop = asyncio.get_running_loop()
    for rule in rules:
        protocol, address, port, far_port = rule.split(":")
        add = ["ip", "address", "replace", f"{address}/32", "dev", "lo"]
        subprocess.run(add, check=True)
        if protocol == "udp":
            datagrams = partial(Datagrams, gateway, int(far_port))
            await loop.create_datagram_endpoint(datagrams, local_addr=(address, int(port)))
        else:
            await asyncio.start_server(partial(forward, gateway, int(far_port)), address, int(port))
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
