"""The engine's HTTP face: readiness, version, metrics, one streaming probe. Loopback only."""

import http.client
import json
import time
from collections.abc import Sequence
from contextlib import closing

from runner.errors import EngineFailed

HOST = "127.0.0.1"


def _get(port: int, path: str, timeout_s: float) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection(HOST, port, timeout=timeout_s)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()


def healthy_ns(port: int) -> int | None:
    """The moment (CLOCK_MONOTONIC ns) at which /health answered 200, None while it does not.

    A refused connection costs microseconds; an engine that accepts without answering is given 2 s.
    """
    try:
        status, _ = _get(port, "/health", 2.0)
        now = time.monotonic_ns()
    except (OSError, http.client.HTTPException):
        return None
    return now if status == 200 else None


def fetch(port: int, path: str) -> bytes:
    """Body of a GET that must answer 200 within 10 s. Raises EngineFailed."""
    try:
        status, body = _get(port, path, 10.0)
    except (OSError, http.client.HTTPException) as error:
        raise EngineFailed(f"GET {path}: {error or type(error).__name__}", "engine_unreachable") from error
    if status != 200:
        raise EngineFailed(f"GET {path} answered {status}", "engine_unreachable")
    return body


def engine_version(port: int) -> str:
    """What /version says. Raises EngineFailed."""
    body = fetch(port, "/version")
    try:
        return str(json.loads(body)["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise EngineFailed(f"/version answered {body[:80]!r}", "engine_version") from error


def probe(port: int, model: str, prompt: Sequence[int], output_tokens: int, timeout_s: float) -> dict[str, int]:
    """Stream one completion of `prompt` (token ids) at temperature 0; its three moments, named as in Timeline.

    Raises EngineFailed (`probe_failed`) on an error, an error event in the stream, or a wrong token count.
    """
    settings = {"model": model, "prompt": list(prompt), "max_tokens": output_tokens, "temperature": 0.0}
    body = json.dumps(settings | {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}})
    first_ns, counted = None, None
    try:
        with closing(http.client.HTTPConnection(HOST, port, timeout=timeout_s)) as connection:
            connection.connect()
            sent_ns = time.monotonic_ns()
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                text = response.read(400).decode(errors="replace")
                raise EngineFailed(f"the probe was answered {response.status}: {text}", "probe_failed")
            while line := response.readline():
                now = time.monotonic_ns()
                if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                    continue
                event = json.loads(line[5:])
                if "error" in event:
                    raise EngineFailed(f"the probe's stream holds an error: {event['error']}", "probe_failed")
                if event.get("choices") and first_ns is None:
                    first_ns = now
                if event.get("usage"):
                    counted = event["usage"]["completion_tokens"]
            end_ns = time.monotonic_ns()
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        raise EngineFailed(f"the probe failed: {error or type(error).__name__}", "probe_failed") from error
    if first_ns is None or counted != output_tokens:
        raise EngineFailed(f"the probe gave {counted} of {output_tokens} tokens", "probe_failed")
    return {"probe_sent_ns": sent_ns, "probe_first_token_ns": first_ns, "probe_end_ns": end_ns}
