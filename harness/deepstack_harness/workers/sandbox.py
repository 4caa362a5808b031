"""The sandbox of a worker, entered by the worker itself before it imports any code under test.

Like `child`, which loads this file by its path, it needs the standard library of Python 3.11 to 3.14 and
nothing else. It needs no root. Four means of Linux are used, each where the kernel offers it:

    Landlock       nothing is written outside the folders of the profile; no signal and no abstract socket
                   reaches a process outside. Restricts the calling thread only, so torch's threads must not
                   run yet
    seccomp        no sockets and no new processes, if the profile forbids them; no system calls that change
                   the machine, or that go round Landlock (io_uring, ptrace, mount; chmod and its relatives)
    capabilities   dropped, but for those that let root read and write files of others (Landlock still holds)
    namespaces     a network with nothing but a loopback device, where processes have to talk to each other

bubblewrap was considered. It makes namespaces, which many containers forbid, it has to be installed, and it
would start the worker through one more program; Landlock and seccomp work inside the process.

Reading is not restricted: torch, compilers and drivers read in too many places.

`remove_folder` removes a folder that code under test wrote into, whatever it left there.
"""

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same on every architecture
_WRITE_FILE, _TRUNCATE, _IOCTL_DEV = 1 << 1, 1 << 14, 1 << 15
_WRITES_OF_ABI = {1: 0x1FF2, 2: 0x3FF2, 3: 0x7FF2, 5: 0xFFF2}
"""Rights other than execute (bit 0), read file (2) and read folder (3), by the first ABI that knows them."""
_SCOPES = 0b11  # abstract unix sockets, signals; since ABI 6
_FILES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 38, 22
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_CAPABILITIES_KEPT = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_CAPABILITY_VERSION = 0x20080522
"""_LINUX_CAPABILITY_VERSION_3 of linux/capability.h."""
_SIOCSIFFLAGS, _IFF_UP_RUNNING = 0x8914, 0x41

_X86, _ARM = 0xC000003E, 0xC00000B7  # AUDIT_ARCH_X86_64, AUDIT_ARCH_AARCH64
_ARCHITECTURES = {"x86_64": (0, _X86), "aarch64": (1, _ARM)}
_Calls = Mapping[str, tuple[int, int | None]]
# System calls by name: their number on x86_64 and on aarch64, None where there is none.
_NETWORK: _Calls = {"socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201)}
_PROCESSES: _Calls = {"fork": (57, None), "vfork": (58, None)}
_ATTRIBUTES: _Calls = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
}  # fmt: skip
_MACHINE: _Calls = {
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "syslog": (103, 116),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsmount": (432, 432),
    "mount_setattr": (442, 442), "setns": (308, 268), "unshare": (272, 97), "open_by_handle_at": (304, 265),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "acct": (163, 89),
    "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "sethostname": (170, 161), "setdomainname": (171, 162),
}  # fmt: skip
_SOCKETPAIR, _CLONE, _CLONE3, _PRLIMIT = (53, 199), (56, 220), (435, 435), (302, 261)
_SOCK_DGRAM, _SOCK_TYPE_MASK, _CLONE_THREAD, _CLONE_NEW = 2, 0xF, 0x10000, 0x7E020000
_EPERM, _ENOSYS = 1, 38

_Instruction = tuple[int, int, int, int]
"""Opcode, lines to skip where a test holds, lines to skip where it does not, and an operand."""
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_ALU|BPF_AND|BPF_K, BPF_RET|BPF_K
_JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_IF_SET = 0x15, 0x35, 0x45  # BPF_JMP|BPF_K with BPF_JEQ, BPF_JGE, BPF_JSET
_SECCOMP_ALLOW, _SECCOMP_ERRNO = 0x7FFF0000, 0x00050000


def enter(rules: Mapping[str, Any]) -> dict[str, list[str]]:
    """Enter the sandbox for good, and return `{"in_force": [..], "missing": [..]}`, a phrase for each part.

    `rules`: `writable` folders and files; `network` "none", "loopback" or "any"; `processes` and `attributes`
    (modes, owners and times of files may be changed), each a bool. A part that this system does not offer
    is left out and named in `missing`; the other parts still hold.
    """
    if sys.platform != "linux":
        return {"in_force": [], "missing": [f"every part of the sandbox: there is none on {sys.platform}"]}
    parts: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        ("no writes outside", _landlock), ("restricted system calls", _seccomp),
    ]  # fmt: skip
    if rules["network"] == "loopback":  # first: what follows forbids it
        parts.insert(0, ("a network of its own", _own_network))
    parts.insert(-1, ("no capabilities", _drop_capabilities))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    report: dict[str, list[str]] = {"in_force": [], "missing": []}
    for name, start in parts:
        try:
            report["in_force"].append(start(rules))
        except OSError as error:
            report["missing"].append(f"{name}: {error.strerror or error}")
    return report


def landlock_abi() -> int:
    """Return the version of Landlock that the kernel offers; raises `OSError` where it offers none."""
    return _call(_LANDLOCK_CREATE, None, 0, 1)


def _landlock(rules: Mapping[str, Any]) -> str:
    abi = landlock_abi()
    handled = max(rights for since, rights in _WRITES_OF_ABI.items() if since <= abi)
    scopes = _SCOPES if abi >= 6 else 0
    fields = [handled, 0, scopes] if abi >= 6 else [handled, 0] if abi >= 4 else [handled]
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = _call(_LANDLOCK_CREATE, attributes, len(attributes), 0)
    try:
        for path in rules["writable"]:
            _allow(ruleset, path, handled)
        for path in _FILES:
            _allow(ruleset, path, handled)
        _call(_LANDLOCK_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)
    # ABI 5 watches ioctl, so that a driver's device is out of reach unless it is writable.
    return f"Landlock {abi} (writes to its folder{', no signals out' if scopes else ''})"


def _allow(ruleset: int, path: str, handled: int) -> None:
    """Allow all writing below a folder, or to a file."""
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # it is not there: nothing can be written to it
        return
    try:
        # A rule of a file that names rights of folders is refused.
        is_folder = os.path.isdir(path)
        rights = handled if is_folder else handled & (_WRITE_FILE | _TRUNCATE | _IOCTL_DEV)
        _call(_LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", rights, opened), 0)
    finally:
        os.close(opened)


def _seccomp(rules: Mapping[str, Any]) -> str:
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise OSError(_ENOSYS, f"no list of system calls for {machine}")
    column, architecture = _ARCHITECTURES[machine]
    program = b"".join(struct.pack("=HBBI", *line) for line in _filter(rules, column, architecture))
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HL", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, 2, ctypes.c_char_p(header), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    refused = ["sockets"] * (rules["network"] == "none") + ["processes"] * (not rules["processes"])
    return f"seccomp (no {', '.join([*refused, 'changes of the machine'])})"


def _filter(rules: Mapping[str, Any], column: int, architecture: int) -> list[_Instruction]:
    """Return a program of the kernel's packet filter: it refuses some calls and allows the rest."""
    calls: list[_Calls] = [_MACHINE]
    if rules["network"] == "none":
        calls.append(_NETWORK)
    if not rules["processes"]:
        calls.append(_PROCESSES)
    if not rules["attributes"]:
        calls.append(_ATTRIBUTES)
    numbers = [numbers[column] for call in calls for numbers in call.values() if numbers[column] is not None]
    lines = [
        (_LOAD, 0, 0, 4), (_JUMP_EQUAL, 1, 0, architecture), _refuse(_EPERM),  # of another architecture
        (_LOAD, 0, 0, 0), (_JUMP_AT_LEAST, 0, 1, 0x40000000), _refuse(_EPERM),  # x32, on x86_64
    ]  # fmt: skip
    for number in numbers:
        lines += [(_JUMP_EQUAL, 0, 1, number or 0), _refuse(_EPERM)]
    # The flags of clone3 are in memory, out of a filter's reach: without it glibc and Python use clone.
    lines += [(_JUMP_EQUAL, 0, 1, _CLONE3[column]), _refuse(_ENOSYS)]
    # Threads are always allowed, new namespaces never.
    namespaces = [(_JUMP_IF_SET, 0, 1, _CLONE_NEW), _refuse(_EPERM)]
    if not rules["processes"]:
        namespaces += [(_JUMP_IF_SET, 1, 0, _CLONE_THREAD), _refuse(_EPERM)]
    lines += _if_called(_CLONE[column], 0, namespaces)
    lines += _if_called(_PRLIMIT[column], 0, [(_JUMP_EQUAL, 1, 0, 0), _refuse(_EPERM)])  # limits of others
    if rules["network"] == "none":
        # A datagram socket of a pair can still be connected to a server that listens on a path.
        test = [(_AND, 0, 0, _SOCK_TYPE_MASK), (_JUMP_EQUAL, 0, 1, _SOCK_DGRAM), _refuse(_EPERM)]
        lines += _if_called(_SOCKETPAIR[column], 1, test)
    return [*lines, _ALLOW]


_ALLOW: _Instruction = (_RETURN, 0, 0, _SECCOMP_ALLOW)


def _refuse(errno: int) -> _Instruction:
    return (_RETURN, 0, 0, _SECCOMP_ERRNO | errno)


def _if_called(number: int, argument: int, test: Sequence[_Instruction]) -> list[_Instruction]:
    """Test an argument (its lower 32 bits) of one call; if the test passes, allow the call."""
    return [(_JUMP_EQUAL, 0, len(test) + 2, number), (_LOAD, 0, 0, 16 + 8 * argument), *test, _ALLOW]


def _drop_capabilities(_rules: Mapping[str, Any]) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION, 0), 8)
    # Effective, permitted, inheritable: capabilities 0..31, then 32..63.
    data = ctypes.create_string_buffer(24)
    if libc.capget(header, data) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    effective, permitted = struct.unpack("=6I", data.raw)[:2]
    kept = (effective & _CAPABILITIES_KEPT, permitted & _CAPABILITIES_KEPT)
    left = ctypes.create_string_buffer(struct.pack("=6I", *kept, 0, 0, 0, 0), 24)
    if libc.capset(header, left) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "no privileges"


def _own_network(_rules: Mapping[str, Any]) -> str:
    """Move into a network without any device but a loopback that is up."""
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP_RUNNING))
    return "a network of its own (loopback only)"


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as stream:
        stream.write(text)


def _call(number: int, *arguments: Any) -> int:  # what ctypes takes
    libc = ctypes.CDLL(None, use_errno=True)
    longs: Iterable[Any] = (ctypes.c_long(value) if isinstance(value, int) else value for value in arguments)
    result: int = libc.syscall(ctypes.c_long(number), *longs)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_folder(folder: str) -> None:
    """Remove a folder with all that is in it, as far as that can be removed; links are not followed.

    `shutil.rmtree` recurses, and gives up at about 1,000 folders in each other. Nobody else may use the
    folder meanwhile.
    """
    with suppress(OSError):
        here = os.open(folder, _FLAGS)
        try:
            names: list[str] = []
            left = [_unlink_files(here)]
            while left[-1] or names:
                if left[-1]:
                    names.append(left[-1].pop())
                    os.chmod(names[-1], stat.S_IRWXU, dir_fd=here)
                    here = _enter_folder(here, names[-1])
                    left.append(_unlink_files(here))
                else:
                    left.pop()
                    here = _enter_folder(here, "..")
                    os.rmdir(names.pop(), dir_fd=here)
        finally:
            os.close(here)
        os.rmdir(folder)


def _enter_folder(here: int, name: str) -> int:
    there = os.open(name, _FLAGS, dir_fd=here)
    os.close(here)
    return there


def _unlink_files(here: int) -> list[str]:
    """Remove the files of an open folder, and return the names of the folders in it."""
    folders = []
    for name in os.listdir(here):
        if stat.S_ISDIR(os.lstat(name, dir_fd=here).st_mode):
            folders.append(name)
        else:
            os.unlink(name, dir_fd=here)
    return folders
