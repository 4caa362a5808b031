"""Trees that nobody vouches for: pipes, devices, links, endless files, and hostile repositories."""

import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import chdir, closing
from pathlib import Path

import pytest
from packaging.version import Version

from cases.selftest.engines.synthetic_vllm import OMNI, QWEN, Vllm
from cases.selftest.workers.processes import reachable_folder
from deepstack_harness.engines.classes import classes_of, methods_of
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.sources import folder
from deepstack_harness.sources.folder import GitFiles, revision_of

MODELS = str(Path(QWEN).parent)


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_socket(path: Path) -> None:
    path.unlink()
    # A path may be too long for the address of a socket, which has 108 bytes at most.
    with closing(socket.socket(socket.AF_UNIX)) as made, chdir(path.parent):
        made.bind(path.name)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_link(target: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return spoil


def as_outside_file(path: Path) -> None:
    outside = path.parents[3].parent / "private.py"
    path.rename(outside)
    path.symlink_to(outside)


def as_loop_of_links(path: Path) -> None:
    path.unlink()
    path.symlink_to("other.py")
    path.with_name("other.py").symlink_to(path.name)


def as_giant(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate((16 << 20) + 1)


IRREGULAR: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (as_pipe, r"' is a named pipe, where a file should be$"),
    "socket": (as_socket, r"' is a socket, where a file should be$"),
    "folder": (as_folder, r"' is a folder, where a file should be$"),
    "link to a device": (as_link("/dev/zero"), r"' leads out of the tree by a link, to '/dev/zero'"),
    "link to a file outside": (as_outside_file, r"' leads out of the tree by a link, to '.*/private\.py'"),
    "link through the parent": (
        as_link("../../../../private.py"),
        r"has no vllm/model_executor/models/qwen3_vl\.py",
    ),
    "loop of links": (as_loop_of_links, r"' cannot be read: Too many levels of symbolic links$"),
    "giant file": (
        as_giant,
        r"' is too large: the limit is 16 MiB, DEEPSTACK_HARNESS_MAX_FILE_MIB raises it$",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), IRREGULAR.values(), ids=IRREGULAR)
def test_what_is_no_plain_file_of_the_tree_is_refused_by_name(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    root = Vllm().tree(tmp_path / "tree")
    spoil(root / QWEN)
    with pytest.raises(UsageError, match=message) as caught:
        methods_of(open_source(str(root)))
    assert str(caught.value).startswith((f"'{root / QWEN}'", f"vllm at {root}"))
    if "has no" not in message:
        with pytest.raises(UsageError, match=message):
            classes_of(open_source(str(root)))


def test_a_link_from_one_place_of_the_tree_to_another_is_followed(tmp_path: Path) -> None:
    root = Vllm().tree(tmp_path / "tree")
    (root / QWEN).rename(root / "elsewhere.py")
    (root / QWEN).symlink_to("../../../elsewhere.py")
    assert methods_of(open_source(str(root))).filename == str(root / QWEN)


@pytest.mark.parametrize("folder", ["vllm", "vllm/model_executor", MODELS])
def test_a_folder_that_is_a_link_out_of_the_tree_is_refused_by_name(tmp_path: Path, folder: str) -> None:
    root = Vllm().tree(tmp_path / "tree")
    (root / folder).rename(tmp_path / "outside")
    (root / folder).symlink_to(tmp_path / "outside")
    with pytest.raises(
        UsageError, match=rf"^'{root}/.*' leads out of the tree by a link, to '{tmp_path}/out"
    ):
        classes_of(open_source(str(root)))


def test_the_tree_itself_may_be_a_link(tmp_path: Path) -> None:
    Vllm().tree(tmp_path / "tree")
    (tmp_path / "current").symlink_to("tree")
    assert open_source(str(tmp_path / "current")).version == Version("0.22.1")
    assert methods_of(open_source(str(tmp_path / "current/vllm"))).model_class


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of somebody who is not root, since root can read everything."""
    with reachable_folder() as name:
        folder = Path(name)
        folder.chmod(0o755)
        root = os.geteuid() == 0
        if root:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)


@pytest.mark.parametrize("member", [QWEN, MODELS, "vllm/model_executor", "vllm", "vllm/_version.py"])
def test_what_may_not_be_read_is_refused_by_name(unprivileged: Path, member: str) -> None:
    root = Vllm().tree(unprivileged / "tree")
    (root / member).chmod(0)
    try:
        with pytest.raises(UsageError, match=rf"^'{root}/vllm.*' cannot be read: Permission denied$"):
            classes_of(open_source(str(root)))
    finally:
        (root / member).chmod(0o755)


def test_a_folder_of_too_many_files_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Vllm().tree(tmp_path)
    files = sum(1 for _ in (root / "vllm").rglob("*"))
    monkeypatch.setenv("DEEPSTACK_HARNESS_MAX_MEMBERS", str(files))
    assert classes_of(open_source(str(root))) == []  # two model files, neither has a forward
    (root / MODELS / "deeper").mkdir()
    limit = f"the limit is {files} files, DEEPSTACK_HARNESS_MAX_MEMBERS raises it"
    with pytest.raises(UsageError, match=rf"^'{root / 'vllm'}' holds too many files: {limit}$"):
        classes_of(open_source(str(root)))


def test_a_folder_of_too_many_bytes_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPSTACK_HARNESS_MAX_UNPACKED_MIB", "1")
    root = Vllm().tree(tmp_path)
    for name in "ab":
        (root / MODELS / f"{name}.py").write_bytes(b"#" * (600 << 10))
    limit = "the limit is 1 MiB, DEEPSTACK_HARNESS_MAX_UNPACKED_MIB raises it"
    with pytest.raises(UsageError, match=rf"^'{root / 'vllm'}' is too large: {limit}$"):
        classes_of(open_source(str(root)))


def test_a_limit_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Vllm().tree(tmp_path)
    with (root / QWEN).open("a") as file:
        file.write("#" * (16 << 20))
    monkeypatch.setenv("DEEPSTACK_HARNESS_MAX_FILE_MIB", "20")
    assert open_source(str(root)).read(QWEN).text.endswith("###")


@pytest.mark.parametrize("value", ["0", "many", "-1", "1.5"])
def test_a_limit_that_is_no_count_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("DEEPSTACK_HARNESS_MAX_FILE_MIB", value)
    root = Vllm().tree(tmp_path)
    with pytest.raises(
        UsageError, match=f"DEEPSTACK_HARNESS_MAX_FILE_MIB is '{value}', but has to be a count"
    ):
        open_source(str(root))


def test_a_name_that_would_change_the_terminal_is_shown_escaped(tmp_path: Path) -> None:
    root = Vllm().tree(tmp_path)
    (root / MODELS / "\x1b[2J.py").write_text("deepstack")
    with pytest.raises(UsageError, match=re.escape(r"cannot be printed: '\x1b[2J.py'")):
        classes_of(open_source(str(root)))


def test_classes_that_are_derived_from_each_other_end(tmp_path: Path) -> None:
    root = Vllm().tree(tmp_path)
    (root / MODELS / "one.py").write_text(
        "from .two import B  # deepstack\nclass A(B):\n    x = 1\nclass C(C): pass\n"
    )
    (root / MODELS / "two.py").write_text("from .one import A  # deepstack\nclass B(A):\n    x = 1\n")
    (root / MODELS / "three.py").write_text(
        "from .one import A  # deepstack\nclass D(E):\n    x = 1\n\nclass E(D):\n"
        "    def forward(self, x):\n        self.inner(deepstack_input_embeds=x)\n"
    )
    assert {audited.found.model_class for audited in classes_of(open_source(str(root)))} == {"D", "E"}


def git(root: Path, *words: str) -> str:
    """Run git with nothing of this machine's configuration."""
    clean = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "PATH": os.environ["PATH"]}
    named = ["-c", "user.name=n", "-c", "user.email=n@localhost", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(root), *named, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=clean).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of one commit, which a build has been made of at some time."""
    root = Vllm().tree(tmp_path / "repository")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "x")
    return root


def test_a_repository_is_labelled_by_its_commit(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    source = open_source(str(repository))
    assert source.label == f"vllm at {repository} (commit {commit[:12]})"
    assert (
        open_source(str(repository / "vllm")).label == f"vllm at {repository / 'vllm'} (commit {commit[:12]})"
    )
    git(repository, "pack-refs", "--all")
    assert open_source(str(repository)).label == source.label
    git(repository, "checkout", "-q", "--detach")
    assert open_source(str(repository)).label == source.label


def test_a_worktree_has_a_commit_of_its_own(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "worktree"))
    git(tmp_path / "worktree", "commit", "-q", "--allow-empty", "-m", "y")
    heads = [git(place, "rev-parse", "HEAD") for place in (repository, tmp_path / "worktree")]
    assert heads[0] != heads[1]
    assert [GitFiles(place).head() for place in (repository, tmp_path / "worktree")] == heads


def test_an_empty_repository_has_no_commit(tmp_path: Path) -> None:
    root = Vllm().tree(tmp_path)
    git(root, "init", "-q")
    assert open_source(str(root)).label == f"vllm at {root}"


VERSION_FILES = {
    "of another commit": ("__version__ = version = '0.22.1'", None),
    "of another commit, between releases": ("__version__ = version = '0.22.2.dev5+g0123456'", None),
    "of this commit": ("__version__ = version = '0.22.2.dev5+g{commit}'", "0.22.2.dev5+g{commit}"),
    "of this commit, changed": (
        "__version__ = version = '0.22.2.dev5+g{commit}.d20260101'",
        "0.22.2.dev5+g{commit}.d20260101",
    ),
    "of this commit, told apart": ("version = '0.22.1'\n__commit_id__ = commit_id = 'g{commit}'", "0.22.1"),
    "of another commit, told apart": ("version = '0.22.1'\n__commit_id__ = commit_id = 'g0123456'", None),
}


@pytest.mark.parametrize(("text", "version"), VERSION_FILES.values(), ids=VERSION_FILES)
def test_in_a_repository_a_build_counts_only_for_its_own_commit(
    repository: Path, text: str, version: str | None
) -> None:
    commit = git(repository, "rev-parse", "HEAD")[:8]
    (repository / "vllm/_version.py").write_text(text.format(commit=commit) + "\n")
    source = open_source(str(repository))
    assert source.version == (Version(version.format(commit=commit)) if version else None)


@pytest.mark.parametrize("tag", [["v0.22.1"], ["0.22.1"], ["-m", "a release", "v0.22.1"]], ids=" ".join)
def test_a_repository_at_the_tag_of_a_release_is_that_release(repository: Path, tag: list[str]) -> None:
    assert open_source(str(repository)).version is None
    git(repository, "tag", *tag)
    git(repository, "pack-refs", "--all")  # only packed-refs have the commit of an annotated tag
    assert open_source(str(repository)).version == Version("0.22.1")
    git(repository, "commit", "-q", "--allow-empty", "-m", "y")
    assert open_source(str(repository)).version is None


HOSTILE_CONFIG = """
[core]
    fsmonitor = {run}
    hooksPath = {hooks}
    pager = {run}
    editor = {run}
    sshCommand = {run}
    gitProxy = {run}
    alternateRefsCommand = {run}
    attributesFile = {attributes}
[filter "bad"]
    clean = {run}
    smudge = {run}
    process = {run}
[diff "bad"]
    textconv = {run}
    command = {run}
[diff]
    external = {run}
[merge "bad"]
    driver = {run}
[alias]
    describe = !{run}
    rev-parse = !{run}
[uploadpack]
    packObjectsHook = {run}
[include]
    path = {included}
"""


def test_nothing_of_a_hostile_repository_runs(repository: Path, tmp_path: Path) -> None:
    ran, run = tmp_path / "ran", tmp_path / "run"
    run.write_text(f'#!/bin/sh\necho "$0 $@" >> {ran}\n')
    run.chmod(0o755)
    hooks = repository / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in (
        "post-index-change",
        "reference-transaction",
        "post-checkout",
        "fsmonitor-watchman",
        "pre-commit",
    ):
        (hooks / name).write_text(run.read_text())
        (hooks / name).chmod(0o755)
    included = tmp_path / "included"
    included.write_text(f"[core]\n    fsmonitor = {run}\n")
    attributes = repository / ".gitattributes"
    attributes.write_text("* filter=bad diff=bad merge=bad\n")
    alternates = repository / ".git/objects/info/alternates"
    os.mkfifo(alternates)  # whoever reads it waits for ever
    values = {"run": run, "hooks": hooks, "included": included, "attributes": attributes}
    with (repository / ".git/config").open("a") as config:
        config.write(HOSTILE_CONFIG.format(**values))
    (repository / QWEN).touch()  # git would call the filter to see whether it was changed
    source = open_source(str(repository))
    assert source.label.startswith(f"vllm at {repository} (commit ")
    assert classes_of(source) == []
    assert not ran.exists()
    alternates.unlink()
    subprocess.run(["git", "-C", str(repository), "status"], check=False, capture_output=True)
    assert ran.exists()  # it would have run


def _head_as_pipe(folder: Path) -> None:
    (folder / "HEAD").unlink()
    os.mkfifo(folder / "HEAD")


def _giant_refs(folder: Path) -> None:
    (folder / "refs/heads/main").unlink()
    with (folder / "packed-refs").open("wb") as file:
        file.truncate((16 << 20) + 1)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_head_as_pipe, r"\.git/HEAD' is a named pipe, where a file should be"),
        (
            _giant_refs,
            r"\.git/packed-refs' is too large: the limit is 16 MiB, DEEPSTACK_HARNESS_MAX_FILE_MIB",
        ),
    ],
)
def test_a_repository_that_blocks_its_reader_is_refused_by_name(
    repository: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(repository / ".git")
    with pytest.raises(UsageError, match=message):
        open_source(str(repository))


def test_a_link_in_the_place_of_a_repository_is_not_followed(repository: Path) -> None:
    assert GitFiles(repository).head() is not None
    (repository / ".git").rename(repository.parent / "elsewhere")
    (repository / ".git").symlink_to("../elsewhere")
    assert GitFiles(repository).head() is None
    assert open_source(str(repository)).label == f"vllm at {repository} (0.22.1)"


def test_a_git_that_does_not_end_is_a_fault_of_the_machine(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_TIMEOUT_S", -1)
    with pytest.raises(MachineError, match="^git init took more than -1 s$"), revision_of(repository, "HEAD"):
        pass


NO_COMMITS = {
    "a path that leads out": "ref: refs/../../../secret",
    "an absolute path": "ref: /etc/passwd",
    "a ref to itself": "ref: refs/heads/itself",
    "no commit": "0123",
    "words": "\x1b[2J",
    "nothing": "",
}


@pytest.mark.parametrize("head", NO_COMMITS.values(), ids=NO_COMMITS)
def test_what_is_no_reference_is_no_commit(repository: Path, head: str) -> None:
    (repository.parent / "secret").write_text("0" * 40)
    (repository / ".git/refs/heads/itself").write_text("ref: refs/heads/itself")
    (repository / ".git/HEAD").write_text(head)
    assert open_source(str(repository)).label == f"vllm at {repository}"


def test_a_file_of_another_model_could_change_the_class_and_is_read(tmp_path: Path) -> None:
    root = Vllm().tree(tmp_path)
    assert methods_of(open_source(str(root))).model_class == "Qwen3VLForConditionalGeneration"
    as_pipe(root / OMNI)
    with pytest.raises(UsageError, match=f"{OMNI}' is a named pipe, where a file should be"):
        methods_of(open_source(str(root)))


def test_the_files_of_all_folders_are_there_and_each_folder_is_entered_once(tmp_path: Path) -> None:
    root = Vllm().tree(tmp_path)
    deep = root / "vllm" / "models" / "new" / "v1.0"
    deep.mkdir(parents=True)
    (deep / "model.py").write_text("deepstack")
    (deep / "again").symlink_to(root / "vllm")
    (deep / "gone.py").symlink_to(deep / "nowhere.py")
    source = open_source(str(root))
    assert source.python_files()["vllm/models/new/v1.0/model.py"] == b"deepstack"
    assert len(source.python_files()) == len(list((root / "vllm").rglob("*.py"))) - 1  # a link to nothing
    assert source.mentioning("vllm/models", "deepstack") == ["vllm/models/new/v1.0/model.py"]


def test_a_folder_that_leads_out_of_the_tree_is_refused(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    root = Vllm().tree(inside)
    (root / "vllm" / "models").symlink_to(outside)
    with pytest.raises(UsageError, match="leads out of the tree by a link"):
        open_source(str(root)).python_files()
