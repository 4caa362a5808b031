"""Attempts of a worker to reach outside; each returns a value where it succeeded, and raises where not."""

import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import chdir
from pathlib import Path


def write_file(outside: str) -> None:
    Path(outside, "new").write_text("x")


def write_over(outside: str) -> None:
    Path(outside, "there").write_text("x")


def truncate(outside: str) -> None:
    os.truncate(f"{outside}/there", 0)


def remove_file(outside: str) -> None:
    Path(outside, "there").unlink()


def rename_file(outside: str) -> None:
    Path(outside, "there").rename(f"{outside}/new")


def link_out(outside: str) -> None:
    """Write through a link in the worker's own folder."""
    with tempfile.TemporaryDirectory() as own:
        link = Path(own, "link")
        link.symlink_to(Path(outside, "there"))
        link.write_text("x")


def make_folder(outside: str) -> None:
    Path(outside, "new").mkdir()


def make_fifo(outside: str) -> None:
    os.mkfifo(f"{outside}/new")


def change_mode(outside: str) -> None:
    Path(outside, "there").chmod(0o777)


def change_times(outside: str) -> None:
    os.utime(f"{outside}/there", (0, 0))


def change_owner(outside: str) -> None:
    os.chown(f"{outside}/there", 1, 1)


def set_attribute(outside: str) -> None:
    os.setxattr(f"{outside}/there", "user.x", b"x")


def open_tcp(outside: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass


def send_udp(outside: str) -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        server.bind(("127.0.0.1", 0))
        sender.sendto(b"x", server.getsockname())


def connect_path(outside: str) -> None:
    # A path may be too long for the address of a socket, which has 108 bytes at most.
    with socket.socket(socket.AF_UNIX) as sender, chdir(outside):
        sender.connect("server")


def reconnect_pair(outside: str) -> None:
    """Point one end of a pair at a server: this needs no call of `socket`."""
    ours, _theirs = socket.socketpair(type=socket.SOCK_DGRAM)
    with chdir(outside):
        ours.connect("datagrams")


def connect(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port)):
        return True


def fork(outside: str) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def run_program(outside: str) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def spawn(outside: str) -> None:
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


def signal_another(outside: str) -> None:
    os.kill(int(Path(outside, "pid").read_text()), 0)


def limit_another(outside: str) -> None:
    resource.prlimit(int(Path(outside, "pid").read_text()), resource.RLIMIT_CORE)


def open_memory_of_another(outside: str) -> None:
    pid = int(Path(outside, "pid").read_text())
    with Path(f"/proc/{pid}/mem").open("rb"):
        pass


def set_up_io_uring(outside: str) -> None:
    _call(425, 1, ctypes.create_string_buffer(120))


def make_namespace(outside: str) -> None:
    _call({"x86_64": 272, "aarch64": 97}[os.uname().machine], 0x10000000)  # unshare(CLONE_NEWUSER)


def _call(number: int, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# What code under test needs


def write_to_own_folder() -> str:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "file").write_text("x")
        return folder


def start_thread() -> list[int]:
    actual: list[int] = []
    thread = threading.Thread(target=actual.append, args=[1])
    thread.start()
    thread.join()
    return actual


def multiply() -> float:
    import torch

    return float((torch.ones(64, 64) @ torch.ones(64, 64)).sum())


def compile_sum() -> float:
    import torch

    def total(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sum()

    return float(torch.compile(total)(torch.ones(8)))


def gather() -> float:
    """Let two ranks, each a process of its own, add their numbers up."""
    with tempfile.TemporaryDirectory() as folder:
        script = (
            "import sys, torch, torch.distributed as d\n"
            f"d.init_process_group('gloo', init_method='file://{folder}/meeting', rank=int(sys.argv[1]), "
            "world_size=2)\nx = torch.ones(1)\nd.all_reduce(x)\nprint(x.item())\nd.destroy_process_group()\n"
        )
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        ranks = [
            subprocess.Popen([sys.executable, "-c", script, str(rank)], stdout=-1, env=environment, text=True)
            for rank in (0, 1)
        ]
        return sum(float(rank.communicate()[0]) for rank in ranks)


def leave_deep_folders() -> str:
    """Leave 1,100 folders in each other, the last one closed to everybody, and a link to /etc."""
    start = tempfile.gettempdir()
    os.symlink("/etc", f"{start}/link")
    os.chdir(start)
    for _ in range(1100):
        os.mkdir("d")
        os.chdir("d")
    os.mkdir("closed", 0)
    return start


def multiply_processes(count: int, witness: str) -> None:
    """Double the number of processes `count` times, and wait for ever; all of them hold `witness` open."""
    os.open(witness, os.O_WRONLY)
    for _ in range(count):
        os.fork()
    signal.pause()


def environment() -> dict[str, str]:
    return dict(os.environ)
