"""Frames: whatever bytes come, in whatever pieces, they are the messages that were sent, or the connection ends."""

from __future__ import annotations

import json
import socket
import struct
import threading

import pytest

from weft.serve import messages
from weft.serve.frames import MOST, BadFrame, FrameBuffer, FrameChannel, Message, packed

SENT: list[Message] = [
    {},
    {"type": "stop"},
    {"text": "A\u0000b \ud83d half, \U0001f600 whole, ü", "numbers": [1, -2.5e-300, 1 << 60], "none": None},
    {"deep": [[[[[["x"]]]]]], "long": "word " * 50_000},
]


@pytest.mark.parametrize("size", [1, 3, 7, 4096, 1 << 20])
def test_frames_in_pieces_of_any_size(size: int) -> None:
    data, buffer, received = b"".join(map(packed, SENT)), FrameBuffer(), list[Message]()
    for start in range(0, len(data), size if size > 1 else 1009):
        received += buffer.take(data[start : start + (size if size > 1 else 1009)])
    assert received == SENT and not buffer.held


def test_a_channel_sends_from_many_threads() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender, receiver = FrameChannel(ours), FrameChannel(theirs)

        def send(thread: int) -> None:
            for number in range(50):
                sender.write([{"thread": thread, "number": number, "text": "x" * 3000}])

        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        received = receiver.messages()
        some = [next(received) for _ in range(400)]
        for thread in threads:
            thread.join()
        for number in range(8):
            assert [each["number"] for each in some if each["thread"] == number] == list(range(50))
        ours.shutdown(socket.SHUT_RDWR)
        assert list(received) == []


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


HOSTILE = {
    "too long": struct.pack(">I", MOST + 1),
    "far too long": b"\xff\xff\xff\xff",
    "not JSON": frame(b"{"),
    "not UTF-8": frame(b'{"a": "\xff\xfe"}'),
    "empty": frame(b""),
    "a list": frame(b"[1, 2]"),
    "a number": frame(b"7"),
    "null": frame(b"null"),
    "no number": frame(b'{"a": NaN}'),
    "infinite": frame(b'{"a": -Infinity}'),
    "deep": frame(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "many digits": frame(b'{"a": ' + b"9" * 100_000 + b"}"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused(name: str) -> None:
    with pytest.raises(BadFrame):
        list(FrameBuffer().take(HOSTILE[name]))


def test_what_is_no_json_is_not_sent() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (float("nan"), float("inf"), object(), b"bytes", deep):
        with pytest.raises(BadFrame):
            packed({"value": value})


JOB = messages.task_job("classify", ["a text"], {"top": 1}, tokens=10)


def test_messages_are_checked() -> None:
    for message in (
        JOB,
        messages.embed_job([[1, 2]]),
        messages.generate_job(["a"], {}),
        messages.look_job("lens", ["a"]),
    ):
        assert messages.checked(json.loads(json.dumps(message)), messages.TO_WORKER) == message
    wrong = [
        {}, {"type": 3}, {"type": "done"}, {**JOB, "id": "1"}, {**JOB, "id": True}, {**JOB, "kind": "other"},
        {**JOB, "inputs": "text"}, {**JOB, "options": []}, {**JOB, "limits": {"tokens": "9"}}, {**JOB, "task": None},
        {**JOB, "limits": {"tokens": -1}}, {"type": "cancel"}, {**messages.generate_job([]), "prompts": None},
    ]  # fmt: skip
    for message in wrong:
        with pytest.raises(BadFrame):
            messages.checked(message, messages.TO_WORKER)


def test_how_long_and_how_deep_a_request_is() -> None:
    assert messages.characters(["four", "five!", 7, None, {"key": "value"}]) == 1 + 4 + 5 + 1 + 1 + 6
    deep: object = "x"
    for _ in range(messages.NESTED + 1):
        deep = [deep]
    with pytest.raises(BadFrame, match="inside each other"):
        messages.characters(deep)
