"""A real service on a simulated region: `cargo xtask client` starts both and sets BAKEOFF_URL and BAKEOFF_API_KEY."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import bakeoff

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="session")
def client():
    if "BAKEOFF_URL" not in os.environ:
        pytest.skip("no service: run `cargo xtask client`")
    with bakeoff.Client() as client:
        yield client


@pytest.fixture(scope="session")
def experiment(client):
    """An experiment that has ended."""
    return client.experiments.create(EXAMPLES / "legal-g5-spot.json").wait(timeout=300)


class Server:
    """Answers what a test wants, in turn, and keeps what it was sent: for what a real service does rarely."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict, dict]] = []
        self.requests: list[tuple[str, str, dict, bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                outer.requests.append((self.command, self.path, dict(self.headers), body))
                status, headers, answer = outer.answers.pop(0) if outer.answers else (200, {}, {})
                if status == 0:
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                data = json.dumps(answer).encode()
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = handle_any  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Relay:
    """A proxy in front of the service that a test can stop: open requests break, and new ones are refused."""

    def __init__(self, target: str) -> None:
        parts = urllib.parse.urlsplit(target)
        self.target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.port = 0
        self.sockets: list[socket.socket] = []
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, args=[self.listener], daemon=True).start()

    def stop(self) -> None:
        for one in [self.listener, *self.sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self.sockets = []

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection(self.target)
            self.sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=[source, sink], daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def relay(client):
    relay = Relay(client._transport.url)
    yield relay
    relay.stop()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()
