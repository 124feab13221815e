"""The worker process: decodes the photos that its standard input names, one after another."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import deque
from typing import Any

import numpy as np

from sareloc.errors import ArgumentError, PhotoError
from sareloc.loading.protocol import ERROR, IMAGE, READY, REPLY, SIZE, Shelf
from sareloc.photos.decoding import decode


def serve(files: list[int]) -> None:
    """Answer requests on standard input until it ends. `files`: the shelves', used in turn; none: pixels are sent."""
    shelves = [Shelf(file) for file in files]
    answers: dict[tuple[int, int], tuple[int, int]] = {}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the caller decides, and ends us
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not land among the replies
    early: deque[list[Any]] = deque()  # requests that came before an answer

    def read() -> list[Any]:
        line = requests.readline()
        if not line:
            os._exit(0)  # the caller is gone
        message: list[Any] = json.loads(line)
        return message

    def reply(kind: int, first: int, second: int, content: bytes | memoryview = b"") -> None:
        replies.write(REPLY.pack(kind, first, second))
        replies.write(content)
        replies.flush()

    def ask(height: int, width: int) -> tuple[int, int]:
        if (height, width) not in answers:
            reply(SIZE, height, width)
            while isinstance((message := read())[0], str):
                early.append(message)
            target = (int(message[0]), int(message[1]))
            if target == (0, 0):
                raise ArgumentError("never mind")
            answers[height, width] = target
        return answers[height, width]

    try:
        reply(READY, 0, 0)
        number = 0
        while True:
            path, wants_size = early.popleft() if early else read()
            number += 1
            try:
                image = decode(path, size=ask if wants_size else None)
            except PhotoError as error:
                message = json.dumps([error.photo, error.reason]).encode()
                reply(ERROR, len(message), 0, message)
                continue
            height, width = image.shape[:2]
            if shelves:
                np.copyto(shelves[number % len(shelves)].pixels(height, width), image)
                reply(IMAGE, height, width)
            else:
                reply(IMAGE, height, width, image.data)
    except BrokenPipeError:
        os._exit(0)  # the caller is gone
