"""Checkpoints: a folder that is whole or absent. Weights in safetensors, optimiser and generator states by `torch.save`
and loaded with `weights_only=True`, the rest JSON: nothing from outside is ever unpickled."""

import errno
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UsageError

FULL = 1 << 20  # bytes left on a disk that has no room for a checkpoint


@dataclass(frozen=True)
class Checkpoint:
    """A finished checkpoint folder. `state` is what the script gave as JSON, `step` its global step."""

    path: Path

    @property
    def meta(self) -> dict:
        return json.loads((self.path / "state.json").read_text())

    @property
    def state(self) -> dict:
        return self.meta["state"]

    @property
    def step(self) -> int:
        return self.meta["global_step"]

    def tensors(self) -> dict:
        """Optimiser and generator states. Nothing is unpickled: `weights_only=True`."""
        import torch

        return torch.load(self.path / "tensors.pt", map_location="cpu", weights_only=True)

    def weights(self, name: str) -> dict:
        """The tensors of `name` by parameter name, from its safetensors file or folder."""
        from safetensors.torch import load_file

        single = self.path / f"{name}.safetensors"
        files = [single] if single.exists() else sorted((self.path / name).glob("*.safetensors"))
        if not files:
            raise UsageError(f"no weights named {name} in {self.path}")
        return {key: value for file in files for key, value in load_file(file).items()}

    def folder(self, name: str) -> Path:
        """Where `save_pretrained` put `name`: something that `llm.load` or transformers opens."""
        return self.path / name


def save(run_path: Path, step: int, weights: dict[str, Any], tensors: dict, meta: dict) -> Path:
    """Writes `checkpoints/<number>-<step>/` aside and renames it, so that a folder there is always whole.

    `weights`: by name, a list of what has `save_pretrained` (model and tokenizer, for one folder) or a dict of tensors.
    `tensors`: optimiser and generator states. `meta`: anything JSON. Keeps the last two. Raises OSError on a full disk,
    with the former checkpoints intact.
    """
    import torch
    from safetensors.torch import save_file

    folder = Path(run_path) / "checkpoints"
    for left_over in folder.glob(".*.tmp"):  # of a process that was killed
        shutil.rmtree(left_over)
    number = 1 + max((_number(p) for p in folder.glob("[0-9]*")), default=0)
    final = folder / f"{number:04d}-{step}"
    aside = folder / f".{final.name}.tmp"
    aside.mkdir(parents=True)
    try:
        for name, value in weights.items():
            if isinstance(value, dict):
                save_file({k: v.contiguous() for k, v in value.items()}, aside / f"{name}.safetensors")
            else:
                for part in value:
                    part.save_pretrained(aside / name)
        torch.save(tensors, aside / "tensors.pt")
        (aside / "state.json").write_text(json.dumps(meta))
        for file in [*aside.rglob("*"), aside]:
            _sync(file)
        aside.rename(final)
        _sync(folder)
    except BaseException as error:
        full = "No space left" in str(error) or shutil.disk_usage(folder).free < FULL
        shutil.rmtree(aside, ignore_errors=True)
        if full and isinstance(error, Exception) and not isinstance(error, OSError):  # torch's does not say why
            raise OSError(errno.ENOSPC, "No space left on device", str(aside)) from error
        raise
    for old in sorted(folder.glob("[0-9]*"), key=_number)[:-2]:
        shutil.rmtree(old)
    return final


def latest(run_path: str | Path) -> Checkpoint | None:
    """The newest checkpoint of a run's folder, or None."""
    found = sorted(Path(run_path).glob("checkpoints/[0-9]*"), key=_number)
    return Checkpoint(found[-1]) if found else None


def _number(path: Path) -> int:
    return int(path.name.split("-")[0])


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
