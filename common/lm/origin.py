"""Where a run comes from: `origin.json` in its folder, a record for each start of the run (the first one, each resume).

A record has the command line and its folder, commit, branch and uncommitted changes of the code, versions, machine,
when it started and ended, and how it ended.
"""

import contextlib
import json
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
from datetime import datetime
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = "origin.json"
PACKAGES = "torch transformers peft accelerate bitsandbytes vllm ray numpy playwright httpx wandb".split()
LARGEST_DIFF = 1 << 20  # bytes kept of the uncommitted changes
MOST_NAMES = 50  # of files that git does not know
HIDDEN = "***"
# in an address: who logs in, and what the query calls a key, a token, a password
SECRETS = re.compile(
    r"(?P<scheme>://)[^\s/?#'\"]+(?=@)"
    r"|(?P<name>[?&;](?:[\w.-]*(?:token|secret|passw(?:or)?d|pwd|signature|credentials?)"
    r"|(?:[\w.-]*[_.-])?(?:api|access)?key|sig|auth)=)[^\s&;#'\"]+",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """A text with stars for the passwords and keys in its addresses."""
    return SECRETS.sub(lambda match: f"{match['scheme'] or match['name']}{HIDDEN}", text)


def begin(run_path: Path, more: dict | None = None) -> dict:
    """Adds this process's record, with `more` in it, to the run's `origin.json` and gives it. Raises OSError where that
    cannot be written."""
    records = read(run_path)
    record = {
        "state": "running",
        "started": _now(),
        "command": shlex.join(["python", *map(without_secrets, sys.argv)]),
        "folder": os.getcwd(),
        **code(ROOT),
        "python": platform.python_version(),
        "versions": versions(),
        "machine": machine(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "pid": os.getpid(),
        "pid_since": _since(os.getpid()),
    } | (more or {})
    changes = record.pop("changes", b"")
    if changes:
        number = f"-{len(records) + 1}" if records else ""
        record["uncommitted"] = f"uncommitted{number}.diff"
        cut = f"\n... cut: {len(changes)} bytes in all\n".encode() if len(changes) > LARGEST_DIFF else b""
        (run_path / record["uncommitted"]).write_bytes(changes[:LARGEST_DIFF] + cut)
    _write(run_path, [*records, record])
    return record


def end(run_path: Path, state: str, reason: str = "") -> None:
    """Notes how the last record's process ended: "finished", "stopped" or "failed". On a full disk nothing is noted."""
    records = read(run_path)
    if records:
        records[-1] |= {"state": state, "ended": _now()} | ({"reason": without_secrets(reason)[:500]} if reason else {})
        with contextlib.suppress(OSError):
            _write(run_path, records)


def read(run_path: str | Path) -> list[dict]:
    """A run's records, the first start first; none in the folder of a run of before there were any."""
    try:
        records = json.loads((Path(run_path) / FILE).read_text())
    except (OSError, ValueError):
        return []
    return [record for record in records if isinstance(record, dict)] if isinstance(records, list) else []


def state(record: dict) -> str:
    """How a record's run stands: "stopped" where it says "running" and its process on this machine is gone."""
    said = record.get("state", "")
    here = record.get("machine", {}).get("host") == socket.gethostname()
    gone = here and _since(record.get("pid", 0)) != record.get("pid_since")
    return "stopped" if said == "running" and gone else said


def code(folder: Path) -> dict:
    """The git state of the code in a folder: `commit` (None without git, or where no file of the folder is in it),
    `branch`, `untracked` (names), and `changes`, the diff of what is not committed, in bytes."""

    def git(*words: str) -> bytes:
        command = ["git", "--no-optional-locks", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, timeout=30, check=True).stdout

    try:
        if not git("ls-files"):  # another project's repository, in which this folder happens to lie
            return {"commit": None}
        commit = git("rev-parse", "HEAD").decode().strip()
        branch = git("rev-parse", "--abbrev-ref", "HEAD").decode().strip()
        changes = git("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv", "--relative")
        names = git("ls-files", "--others", "--exclude-standard", "--directory").decode(errors="replace").splitlines()
    except (OSError, subprocess.SubprocessError):
        return {"commit": None}
    more = [f"and {len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return {"commit": commit, "branch": branch, "untracked": names[:MOST_NAMES] + more, "changes": changes}


def versions() -> dict[str, str]:
    """The installed versions of PACKAGES. Nothing is imported for it."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def machine() -> dict:
    """Host, operating system, processor, memory; and the GPUs, where torch is imported already and sees some."""
    cpu = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    about = {"host": socket.gethostname(), "platform": platform.platform(), "cpu": cpu, "cpus": os.cpu_count()}
    with contextlib.suppress(OSError, ValueError, AttributeError):
        about["memory_gib"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    torch = sys.modules.get("torch")
    with contextlib.suppress(RuntimeError):  # a driver that is not right
        if torch and torch.cuda.is_available():
            about["gpus"] = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return about


def _since(pid: int) -> str | None:
    """What tells a process from a later one of the same number: when it started, by /proc; None where it is gone."""
    try:
        status, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if status in "ZX" else rest[18]
    except (OSError, IndexError):
        pass
    if Path("/proc/self/stat").exists():
        return None
    try:  # no /proc: macOS
        os.kill(pid, 0)
    except (OSError, OverflowError, TypeError):
        return None
    return "unknown"


def _write(run_path: Path, records: list[dict]) -> None:
    aside = run_path / f".{FILE}.tmp"  # a full disk leaves the former one
    try:
        aside.write_text(json.dumps(records, indent=2) + "\n")
        aside.replace(run_path / FILE)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
