"""Encodes AWS event streams, the framing of Bedrock's streams.

Source: https://smithy.io/2.0/aws/amazon-eventstream.html
"""

from __future__ import annotations

import json
import struct
from binascii import crc32
from collections.abc import Mapping
from typing import Any

STRING = 7


def aws_event(name: str, data: Any, kind: str = "event") -> bytes:
    """Encode an event, or an exception of this name."""
    headers = {f":{kind}-type": name, ":content-type": "application/json", ":message-type": kind}
    return aws_message(headers, json.dumps(data).encode())


def aws_message(headers: Mapping[str, str], payload: bytes = b"", more_headers: bytes = b"") -> bytes:
    """Encode a message with text headers, and with further headers that are encoded already."""
    encoded = b"".join(aws_header(name, STRING, _with_length(value.encode())) for name, value in headers.items())
    return aws_frame(encoded + more_headers, payload)


def aws_header(name: str, kind: int, value: bytes) -> bytes:
    """Encode a header of any type; the value includes its length where the type has one."""
    return bytes([len(name)]) + name.encode() + bytes([kind]) + value


def aws_frame(headers: bytes, payload: bytes) -> bytes:
    """Encode a message with both of its checksums."""
    lengths = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    message = lengths + struct.pack("!I", crc32(lengths)) + headers + payload
    return message + struct.pack("!I", crc32(message))


def _with_length(value: bytes) -> bytes:
    return struct.pack("!H", len(value)) + value
