"""Readiness poll, probe, version and metrics against a small server of our own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from runner import http
from runner.errors import EngineFailed
from runner.processes import free_port


class Fake(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int = 0, **answers: Any) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.port = self.server_address[1]
        self.health = iter(answers.get("health", ()))
        self.events: list[tuple[float, str]] = answers.get("events", [])
        self.status = answers.get("status", 200)
        self.body = answers.get("body", b"")
        self.asked: dict[str, Any] = {}
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    server: Fake

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        status = next(self.server.health, 200) if self.path == "/health" else self.server.status
        self.send_response(status)
        self.end_headers()
        self.wfile.write(self.server.body)

    def do_POST(self) -> None:
        self.server.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.server.status)
        self.end_headers()
        for delay_s, data in self.server.events:
            time.sleep(delay_s)
            self.wfile.write(f"data: {data}\n\n".encode())
            self.wfile.flush()


@pytest.fixture
def fake() -> Iterator[Any]:
    servers: list[Fake] = []

    def make(**answers: Any) -> Fake:
        servers.append(Fake(**answers))
        return servers[-1]

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def token(text: str = "w1") -> str:
    return json.dumps({"choices": [{"index": 0, "text": text}]})


def usage(tokens: int) -> str:
    return json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}})


def test_healthy_is_the_moment_of_the_first_200(fake: Any) -> None:
    port = free_port()
    assert http.healthy_ns(port) is None  # refused
    fake(port=port, health=[503])
    assert http.healthy_ns(port) is None
    begin = time.monotonic_ns()
    moment = http.healthy_ns(port)
    assert moment is not None
    assert begin < moment <= time.monotonic_ns()


def test_probe_times_the_first_token(fake: Any) -> None:
    server = fake(events=[(0.1, token()), (0.1, token("")), (0.0, usage(2)), (0.05, "[DONE]")])
    probe = http.probe(server.port, "m", [5, 6, 7], 2, 5.0)
    assert 0.1 <= (probe["probe_first_token_ns"] - probe["probe_sent_ns"]) / 1e9 < 0.19
    assert 0.25 <= (probe["probe_end_ns"] - probe["probe_sent_ns"]) / 1e9 < 0.5
    assert server.asked["prompt"] == [5, 6, 7]
    assert server.asked["temperature"] == 0
    assert server.asked["stream"] is True
    assert server.asked["max_tokens"] == 2


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"status": 400}, "400"),
        ({"events": [(0, token()), (0, usage(1))]}, "1 of 2 tokens"),
        ({"events": [(0, token()), (0, json.dumps({"error": {"message": "gone"}}))]}, "gone"),
        ({"events": [(0, token())]}, "None of 2 tokens"),
        ({"events": [(0, "{half")]}, "probe failed"),
        ({"events": [(3, token())]}, "timed out"),
    ],
)
def test_probe_failures_are_typed(fake: Any, answers: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineFailed, match=message) as caught:
        http.probe(fake(**answers).port, "m", [5], 2, 0.5)
    assert caught.value.failure_class == "probe_failed"


def test_probe_against_nothing() -> None:
    with pytest.raises(EngineFailed, match="probe failed"):
        http.probe(free_port(), "m", [5], 2, 0.5)


def test_version_and_fetch(fake: Any) -> None:
    assert http.engine_version(fake(body=b'{"version":"0.23.0"}').port) == "0.23.0"
    assert http.fetch(fake(body=b"vllm:x 1\n").port, "/metrics") == b"vllm:x 1\n"
    for body in (b"", b"[]", b"{}"):
        with pytest.raises(EngineFailed, match="/version"):
            http.engine_version(fake(body=body).port)
    with pytest.raises(EngineFailed, match="503"):
        http.fetch(fake(status=503).port, "/metrics")
    with pytest.raises(EngineFailed, match="/metrics"):
        http.fetch(free_port(), "/metrics")
