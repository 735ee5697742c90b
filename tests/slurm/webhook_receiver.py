"""A web server that receives messages as a chat service does; run as a program, it appends them to a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

OK = 200


class Receiver(BaseHTTPRequestHandler):
    """Answers with the given statuses in turn, then 200, and collects the texts of accepted messages."""

    statuses: ClassVar[list[int]] = []
    texts: ClassVar[list[str]] = []
    paths: ClassVar[list[str]] = []
    log_file: ClassVar[str] = ""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.statuses.pop(0) if self.statuses else OK
        self.paths.append(self.path)
        if status == OK:
            self.texts.append(json.loads(body)["text"])
            if self.log_file:
                Path(self.log_file).write_text(json.dumps(self.texts))
        self.send_response(status)
        if status != OK:
            self.send_header("Retry-After", "7")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def receive(statuses: Sequence[int] = ()) -> Iterator[tuple[str, type[Receiver]]]:
    """Yield the address of a receiver on this machine, and its class with what it has received."""
    receiver = type("TestReceiver", (Receiver,), {"statuses": list(statuses), "texts": [], "paths": []})
    server = HTTPServer(("127.0.0.1", 0), receiver)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/services/T0/secret-part", receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    Receiver.log_file = sys.argv[2]
    Receiver.statuses.extend(map(int, sys.argv[3:]))
    HTTPServer(("", int(sys.argv[1])), Receiver).serve_forever()
