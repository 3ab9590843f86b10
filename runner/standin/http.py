"""Just enough HTTP/1.1 for the stand-in's server and its bench client: keep-alive, chunked bodies, no TLS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


class ServerConnection(asyncio.Protocol):
    """One client connection. `handler(connection, method, path, headers, body)` answers each request."""

    def __init__(self, handler: Callable[[ServerConnection, str, str, dict[str, str], bytes], None]) -> None:
        self._handler = handler
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self.on_lost: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        if self.on_lost:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        request, *lines = head.decode("latin-1").split("\r\n")
        headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length") or 0)
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        method, path, *_ = [*request.split(" "), "/"]
        self._handler(self, method, path.partition("?")[0], headers, rest[:length])

    def write(self, data: bytes) -> None:
        if self._transport:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    def respond(self, body: Any, status: int = 200, content_type: str = "application/json") -> None:
        """A whole response; anything but bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
        kind = f"content-type: {content_type}\r\n" if data else ""
        head = f"HTTP/1.1 {status} {REASONS[status]}\r\nserver: uvicorn\r\n"
        self.write(f"{head}content-length: {len(data)}\r\n{kind}\r\n".encode() + data)

    def start_stream(self) -> None:
        self.write(
            b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )

    def chunk(self, data: bytes, last: bool = False) -> None:
        self.write(b"%x\r\n%b\r\n%b" % (len(data), data, b"0\r\n\r\n" if last else b""))


class ClientConnection(asyncio.Protocol):
    """A keep-alive connection that carries one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._on_data: Callable[[bytes], bool] | None = None
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._done and not self._done.done():
            self._done.set_exception(exc or ConnectionResetError("Server disconnected"))

    def data_received(self, data: bytes) -> None:
        if self._on_data and self._done and self._on_data(data) and not self._done.done():
            self._done.set_result(None)

    async def post(
        self, path: str, headers: dict[str, str], body: bytes, on_data: Callable[[bytes], bool]
    ) -> None:
        """Send a request; `on_data` sees every read and returns True when the response is complete.
        Raises ConnectionError if the server goes away."""
        if self.transport is None:
            raise ConnectionResetError("Connection is closed")
        lines = [
            f"POST {path} HTTP/1.1",
            f"content-length: {len(body)}",
            *(f"{key}: {value}" for key, value in headers.items()),
        ]
        self._on_data, self._done = on_data, asyncio.get_running_loop().create_future()
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        await self._done


async def connect(host: str, port: int) -> ClientConnection:
    """Raises OSError if nobody listens."""
    _, protocol = await asyncio.get_running_loop().create_connection(ClientConnection, host, port)
    return protocol
