#!/usr/bin/env python3
"""A puppet agent: it does nothing by itself and says what the test says.

It connects to the unix socket that PUPPET_SOCKET names, introduces itself and
relays. Frames on that socket are one type byte, a little-endian u32 length and
the payload.

To the test:    H hello (JSON)   I bytes read on stdin   E stdin is at its end
                A an order is done (payload: its number as text)
From the test:  O write these bytes to stdout     S sleep (payload: ms as text)
                R write these bytes to stderr     C close stdout
                N close stdin (the other side gets EPIPE)
                X exit (payload: status as text)

PUPPET_START=fork:MS makes a second process that inherits the pipes and plays
the puppet, while the first one exits 0 after MS milliseconds.
"""

import json
import os
import select
import socket
import struct
import sys
import threading
import time

PIECE = 65536


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[:PIECE]):]


class Puppet:
    def __init__(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(os.environ["PUPPET_SOCKET"])
        self.lock = threading.Lock()
        self.wake_read, self.wake_write = os.pipe()
        self.stdin_closed = threading.Event()

    def tell(self, kind, payload=b""):
        with self.lock:
            self.sock.sendall(kind + struct.pack("<I", len(payload)) + payload)

    def take(self, count):
        parts = []
        while count:
            part = self.sock.recv(min(count, 1 << 20))
            if not part:
                os._exit(0)  # the test is gone, and so is the puppet
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def read_stdin(self):
        while True:
            ready, _, _ = select.select([0, self.wake_read], [], [])
            if self.wake_read in ready:
                os.close(0)
                self.stdin_closed.set()
                return
            data = os.read(0, PIECE)
            if not data:
                self.tell(b"E")
                return
            self.tell(b"I", data)

    def obey(self):
        done = 0
        while True:
            head = self.take(5)
            kind, size = head[:1], struct.unpack("<I", head[1:])[0]
            payload = self.take(size)
            if kind == b"O":
                try:
                    write_all(1, payload)
                except OSError:
                    pass
            elif kind == b"R":
                write_all(2, payload)
            elif kind == b"S":
                time.sleep(int(payload) / 1000)
            elif kind == b"C":
                os.close(1)
            elif kind == b"N":
                os.write(self.wake_write, b"x")
                self.stdin_closed.wait(5)
            elif kind == b"X":
                os._exit(int(payload))
            done += 1
            self.tell(b"A", str(done).encode())

    def run(self):
        hello = {
            "pid": os.getpid(),
            "argv": sys.argv,
            "agent": os.environ.get("PUPPET_AGENT", ""),
            "cwd": os.getcwd(),
            "mark": os.environ.get("FRONTDESK_INSTANCE", ""),
        }
        self.tell(b"H", json.dumps(hello).encode())
        threading.Thread(target=self.read_stdin, daemon=True).start()
        self.obey()


def main():
    start = os.environ.get("PUPPET_START", "")
    if start.startswith("fork:"):
        if os.fork() != 0:
            time.sleep(int(start[5:]) / 1000)
            os._exit(0)
    Puppet().run()


if __name__ == "__main__":
    try:
        main()
    except (ConnectionError, BrokenPipeError):
        os._exit(0)
