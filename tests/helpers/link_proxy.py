"""A proxy in a link between two machines, which delays or loses frames.

    python tests/helpers/link_proxy.py INTERFACE INTERFACE --delay SECONDS --loss SHARE

It needs no kernel module, unlike `tc netem`. It runs until SIGTERM, and prints how many frames it passed on and lost.
"""

import argparse
import random
import select
import signal
import socket
import sys
import time
from collections import Counter, deque

PACKET, VIRTUAL_HEADER, ALL_PROTOCOLS = 263, 15, 3  # SOL_PACKET, PACKET_VNET_HDR and ETH_P_ALL of Linux
LARGEST = 1 << 17  # bytes; the kernel joins frames


def open_interface(name: str) -> socket.socket:
    """Opens a socket for the frames of an interface. The kernel's header says which checksums are still missing."""
    interface = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    interface.setsockopt(PACKET, VIRTUAL_HEADER, 1)
    interface.bind((name, 0))
    return interface


def pass_on(interfaces: list[socket.socket], delay: float, loss: float, counts: Counter) -> None:
    """Sends the frames of each of two interfaces to the other one, in their order. Counts `passed` and `lost`."""
    rng = random.Random(0)
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        pause = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        for interface in select.select(interfaces, [], [], pause)[0]:
            frame, (*_, kind, _, _) = interface.recvfrom(LARGEST)
            if kind == socket.PACKET_OUTGOING:  # sent by this process
                continue
            if rng.random() < loss:
                counts["lost"] += 1
                continue
            counts["passed"] += 1
            waiting.append((time.monotonic() + delay, interfaces[1 - interfaces.index(interface)], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, interface, frame = waiting.popleft()
            interface.send(frame)


def main() -> None:
    """Parses the arguments, opens the interfaces, and calls [`pass_on`]."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interfaces", nargs=2)
    parser.add_argument("--delay", type=float, default=0)
    parser.add_argument("--loss", type=float, default=0)
    arguments = parser.parse_args()
    interfaces = [open_interface(name) for name in arguments.interfaces]
    counts: Counter = Counter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    print("ready", flush=True)
    try:
        pass_on(interfaces, arguments.delay, arguments.loss, counts)
    finally:
        print(counts["passed"], counts["lost"])


if __name__ == "__main__":
    main()
