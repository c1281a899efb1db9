"""Machines of a cluster as namespaces of one computer, which tests can break and replace.

Each machine has its own network, host name and disk. Their links meet at a bridge, where a server is reachable from
all of them. The bridge and the disks, which are in memory, belong to a further namespace. Each namespace has a process
that reads from a pipe of the test. When the test ends or is killed, this process kills the others, and the kernel
removes everything.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import forked
import pytest

HOST = "10.77.0.1"  # of the bridge
DISK = "64m"  # in memory
ENTERED = ("net", "uts", "mnt")
NEEDED = "ip link add type bridge\nip link add type veth\nmount -t tmpfs tmpfs /tmp"  # needs rights and kernel modules
# Reports that the namespaces exist, waits until the test ends, and kills the processes of this network.
UNTIL_THE_END = """
echo
read -r line
own=$(readlink /proc/$$/ns/net)
find /proc/[0-9]*/ns/net -lname "net:?${own#net:?}" 2> /dev/null | cut -d / -f 3 | xargs -r kill -9 2> /dev/null
"""


class Namespaces:
    """A process that keeps namespaces alive."""

    def __init__(self, command: Sequence[str]):
        self._process = subprocess.Popen(
            [*command, "sh", "-c", UNTIL_THE_END], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self._process.pid
        assert self._process.stdout.read(1), f"{command} failed"

    @property
    def enter(self) -> list[str]:
        """The command that runs another command inside."""
        return [shutil.which("nsenter"), f"--target={self.pid}", "--net", "--uts", "--mount"]

    def run(self, script: str) -> None:
        subprocess.run([*self.enter, "sh", "-ec", script], check=True)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


class Machine:
    """One of the machines of a [`Cluster`].

    Attributes:
        name: its host name, such as "node0".
        disk: its files, as this process sees them.
        is_on: whether it runs.
    """

    is_on = False

    def __init__(self, cluster: "Cluster", number: int):
        self.name, self.address = f"node{number}", f"10.77.0.{number + 2}"
        # The others remember which hardware has the address. So a replacement must have the same.
        self._hardware = f"02:00:00:00:00:{number + 2:02x}"
        self._cluster, self._mount = cluster, cluster.folder / "disks" / self.name
        self.disk = Path(f"/proc/{cluster.namespaces.pid}/root{self._mount}")
        self._mount.mkdir()
        cluster.namespaces.run(f"mount -t tmpfs -o size={DISK} tmpfs {self._mount}")

    def boot(self) -> None:
        """Turns the machine on."""
        self.is_on = True
        cluster = self._cluster.namespaces
        self._namespaces = Namespaces([*cluster.enter, "unshare", "--net", "--uts", "--mount"])
        cluster.run(
            f"ip link add {self.name} type veth peer address {self._hardware} name eth0 netns {self._namespaces.pid}\n"
            f"ip link set {self.name} master bridge up"
        )
        self._namespaces.run(
            f"hostname {self.name}\n"
            f"mount --bind {self._cluster.folder}/hosts /etc/hosts\n"
            f"mount --bind {self._mount} {self._cluster.disk}\n"
            f"ip address add {self.address}/24 dev eth0\n"
            "ip link set lo up\nip link set eth0 up"
        )

    def start(self, command: Sequence[str | Path], **environment: str) -> "Output":
        """Starts a program in the folder of the disk, and reads its output."""
        enter = [*self._namespaces.enter, "env", f"--chdir={self._cluster.disk}"]
        return Output([*enter, *map(str, command)], os.environ | self.environment | environment)

    def fork(self, function: Callable[..., int | None], *arguments: Any, **environment: str) -> forked.ForkedProcess:
        """Calls a module's function in a forked process on the machine, see [`forked.start`]."""
        pid, folder = self._namespaces.pid, self._cluster.disk
        return forked.start(_run_inside, pid, folder, function, arguments, **self.environment, **environment)

    @property
    def environment(self) -> dict[str, str]:
        return {"GLOO_SOCKET_IFNAME": "eth0", "HF_HOME": f"{self._cluster.disk}/home", "OMP_NUM_THREADS": "1"}

    def list_processes(self, variable: str = "") -> list[int]:
        """Lists the running processes, or only processes with `variable` in their environment."""
        pids, own = [], os.readlink(f"/proc/{self._namespaces.pid}/ns/net")
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):  # it has ended
                if os.readlink(f"/proc/{name}/ns/net") != own or int(name) == self._namespaces.pid:
                    continue
                if f"\0{variable}=".encode() in b"\0" + Path(f"/proc/{name}/environ").read_bytes() or not variable:
                    pids.append(int(name))
        return pids

    def send(self, number: int, variable: str = "") -> None:
        """Sends a signal to [`list_processes`]."""
        for pid in self.list_processes(variable):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    # --- faults -------------------------------------------------------------------------------------------------

    def lose(self, empties_disk: bool = False) -> None:
        """Turns the machine off without a word to the others. [`boot`] turns it, or a replacement, on.

        Args:
            empties_disk: whether the replacement has an empty disk.
        """
        self._cluster.namespaces.run(f"ip link delete {self.name}")  # first, so that dying processes send nothing
        while self.list_processes():
            self.send(signal.SIGKILL)
            time.sleep(0.01)
        self._namespaces.close()
        self.is_on = False
        if empties_disk:
            self.empty_disk()

    def empty_disk(self) -> None:
        for path in self.disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def cut_off(self) -> None:
        """Interrupts the link."""
        self._cluster.namespaces.run(f"ip link set {self.name} down")

    def reconnect(self) -> None:
        self._cluster.namespaces.run(f"ip link set {self.name} up")

    @contextmanager
    def disturb(self, delay: float = 0, loss: float = 0) -> Iterator[None]:
        """Puts a proxy into the link during the block. Some frames are lost when it begins and ends.

        Args:
            delay: seconds that each frame takes.
            loss: share of the frames that are lost.
        """
        cluster, near, far = self._cluster.namespaces, f"{self.name}-near", f"{self.name}-far"
        script = Path(__file__).parent / "link_proxy.py"
        command = [*cluster.enter, sys.executable, script, self.name, near, f"--delay={delay}", f"--loss={loss}"]
        cluster.run(f"ip link add {near} type veth peer name {far}")
        try:
            cluster.run(f"ip link set {near} up\nip link set {far} up")
            with subprocess.Popen(command, stdout=subprocess.PIPE) as proxy:
                try:
                    assert proxy.stdout.readline() == b"ready\n"
                    cluster.run(f"ip link set {self.name} nomaster\nip link set {far} master bridge")
                    yield
                    proxy.terminate()
                    assert proxy.wait() == 0
                finally:
                    proxy.kill()
                passed, lost, dropped = map(int, proxy.stdout.read().split())
            assert passed > 0 and (lost > 0) == (loss > 0) and dropped == 0, (passed, lost, dropped)
        finally:
            cluster.run(f"ip link delete {far}\nip link set {self.name} master bridge")

    def slow_down(self, seconds: float, share: float = 0.75) -> None:
        """Stops all processes for a share of each of the next tenths of a second."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.send(signal.SIGSTOP)
            time.sleep(0.1 * share)
            self.send(signal.SIGCONT)
            time.sleep(0.1 * (1 - share))

    def fill_disk(self) -> None:
        """Leaves space for log lines, but not for a checkpoint, until [`free_disk`]."""
        with open(self.disk / "ballast", "wb", buffering=0) as file:
            with suppress(OSError):
                while True:
                    file.write(bytes(4096))
            file.truncate(file.tell() - 100_000)

    def free_disk(self) -> None:
        (self.disk / "ballast").unlink(missing_ok=True)


class Output:
    """A program and the lines that it has printed, each with its time."""

    def __init__(self, command: list[str], environment: dict[str, str]):
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self.lines: list[tuple[float, str]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))


class Cluster:
    """Machines whose links meet at a bridge.

    Attributes:
        machines: they are on.
        disk: the disk of each machine, as its own processes see it.
        namespaces: of the bridge, which the machines reach as `HOST`.
    """

    def __init__(self, folder: Path, number: int):
        self.folder, self.disk = folder, folder / "disk"
        for name in ("disk", "disks"):
            (folder / name).mkdir(parents=True)
        names = [f"10.77.0.{index + 2} node{index}" for index in range(number)]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        self.namespaces = Namespaces(["unshare", "--net", "--uts", "--mount"])
        self.machines: list[Machine] = []
        try:
            self.namespaces.run(
                f"ip link set lo up\nip link add bridge type bridge\nip address add {HOST}/24 dev bridge\n"
                "ip link set bridge up"
            )
            for index in range(number):
                machine = Machine(self, index)
                machine.boot()
                self.machines.append(machine)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for machine in self.machines:
            if machine.is_on:
                machine.lose()
        self.namespaces.close()


@contextmanager
def start_cluster(folder: Path, number: int = 2) -> Iterator[Cluster]:
    """Turns on machines, and removes them after the block. Skips tests without the rights or the programs for it.

    Args:
        folder: a folder that is created, on the disk of the computer.
        number: of machines.
    """
    missing = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    allowed = subprocess.run(["unshare", "--net", "--uts", "--mount", "sh", "-ec", NEEDED], capture_output=True)
    if allowed.returncode != 0:
        pytest.skip(f"network namespaces are not possible here: {allowed.stderr.decode().strip()}")
    cluster = Cluster(folder, number)
    try:
        yield cluster
    finally:
        cluster.close()


def _run_inside(pid: int, folder: Path, function: Callable[..., int | None], arguments: tuple) -> int | None:
    """Moves this process, which has one thread, to the namespaces of another process, and calls the function."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name in ENTERED:
        with open(f"/proc/{pid}/ns/{name}") as file:
            if libc.setns(file.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), f"setns {name}")
    os.chdir(folder)
    return function(*arguments)
