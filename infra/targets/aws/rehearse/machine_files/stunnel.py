#!/usr/bin/python3
"""Stand in for stunnel: the options that muster's tunnels to EFS use, and no others."""

from __future__ import annotations

import asyncio
import ssl
import sys

ALLOWED = {
    "foreground", "pid", "client", "accept", "connect", "sslVersionMin", "verifyChain", "CAfile", "checkHost",
    "TIMEOUTbusy", "TIMEOUTclose",
}  # fmt: skip


def read_settings(path: str) -> dict[str, str]:
    """Return the options of a file; exit if there are others than those that muster uses."""
    with open(path) as file:
        pairs = [line.partition("=") for line in file if "=" in line]
    settings = {key.strip(): value.strip() for key, _, value in pairs}
    if unknown := set(settings) - ALLOWED:
        sys.exit(f"stunnel stand-in: unknown options {', '.join(sorted(unknown))}")
    return settings


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction of a connection."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


async def main(settings: dict[str, str]) -> None:
    """Forward each connection through TLS, and check the certificate and its host."""
    context = ssl.create_default_context(cafile=settings["CAfile"])
    host, port = settings["connect"].rsplit(":", 1)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=settings["checkHost"])
        except OSError as error:
            print(f"stunnel stand-in: {host}:{port}: {error}", file=sys.stderr, flush=True)
            writer.close()
            return
        await asyncio.gather(pump(reader, far[1]), pump(far[0], writer))

    address, local_port = settings["accept"].rsplit(":", 1)
    server = await asyncio.start_server(forward, address, int(local_port))
    await server.serve_forever()


asyncio.run(main(read_settings(sys.argv[1])))
