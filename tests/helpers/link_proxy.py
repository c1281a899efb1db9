"""A proxy in a link between two machines, which delays or loses frames.

    python tests/helpers/link_proxy.py INTERFACE INTERFACE --delay SECONDS --loss SHARE

It needs no kernel module, unlike `tc netem`. After SIGTERM, it prints how many frames it passed on and lost, and how
many the kernel dropped.
"""

import argparse
import random
import select
import signal
import socket
import struct
import time
from collections import deque
from typing import Any

# SOL_PACKET, PACKET_VNET_HDR, PACKET_STATISTICS, ETH_P_ALL and SO_RCVBUFFORCE of Linux
PACKET, VIRTUAL_HEADER, STATISTICS, ALL_PROTOCOLS, BUFFER = 263, 15, 6, 3, 33
LARGEST = 1 << 17  # bytes; the kernel joins frames up to 64 KB
BUFFER_BYTES = 1 << 26


class LinkProxy:
    """Passes frames on between two interfaces, in both directions and in their order.

    Args:
        names: of the interfaces.
        delay: seconds that each frame takes.
        loss: share of the frames that are lost.

    Attributes:
        passed, lost: numbers of frames.
        runs: true until [`stop`].
    """

    def __init__(self, names: list[str], delay: float, loss: float):
        self.interfaces = [open_interface(name) for name in names]
        self.delay, self.loss, self.rng = delay, loss, random.Random(0)
        self.waiting: deque[tuple[float, socket.socket, bytes]] = deque()
        self.passed = self.lost = 0
        self.runs = True

    def run(self) -> None:
        """Passes frames on until [`stop`]."""
        while self.runs:
            pause = 0.05  # `select` continues after a signal
            if self.waiting:
                pause = min(pause, max(0, self.waiting[0][0] - time.monotonic()))
            for interface in select.select(self.interfaces, [], [], pause)[0]:
                self.receive(interface)
            while self.waiting and self.waiting[0][0] <= time.monotonic():
                _, interface, frame = self.waiting.popleft()
                interface.send(frame)
                self.passed += 1

    def receive(self, interface: socket.socket) -> None:
        """Receives a frame, which is lost or waits for its time."""
        frame, (*_, kind, _, _) = interface.recvfrom(LARGEST)
        if kind == socket.PACKET_OUTGOING:  # sent by this process
            return
        if self.rng.random() < self.loss:
            self.lost += 1
            return
        other = self.interfaces[1 - self.interfaces.index(interface)]
        self.waiting.append((time.monotonic() + self.delay, other, frame))

    def count_dropped(self) -> int:
        """Counts the frames that the kernel dropped because this process was too slow."""
        return sum(struct.unpack("II", each.getsockopt(PACKET, STATISTICS, 8))[1] for each in self.interfaces)

    def stop(self, *_: Any) -> None:
        """Called by SIGTERM."""
        self.runs = False


def open_interface(name: str) -> socket.socket:
    """Opens a socket for the frames of an interface. A header of the kernel marks missing checksums."""
    interface = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    interface.setsockopt(PACKET, VIRTUAL_HEADER, 1)
    interface.setsockopt(socket.SOL_SOCKET, BUFFER, BUFFER_BYTES)
    interface.bind((name, ALL_PROTOCOLS))
    return interface


def main() -> None:
    """Parses the arguments and runs a [`LinkProxy`]."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interfaces", nargs=2)
    parser.add_argument("--delay", type=float, default=0)
    parser.add_argument("--loss", type=float, default=0)
    arguments = parser.parse_args()
    proxy = LinkProxy(arguments.interfaces, arguments.delay, arguments.loss)
    signal.signal(signal.SIGTERM, proxy.stop)
    print("ready", flush=True)
    proxy.run()
    print(proxy.passed, proxy.lost, proxy.count_dropped())


if __name__ == "__main__":
    main()
