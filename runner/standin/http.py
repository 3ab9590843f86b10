"""What the stand-in's server and its bench client share of HTTP/1.1."""

import asyncio


async def read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    """First line and headers (names in lower case) of the next message. Raises EOFError or OSError if the
    peer has gone."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
    return first, {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
