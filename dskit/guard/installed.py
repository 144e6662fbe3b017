"""The installed DeepSpeed as it lies on disk: release, folder, and the text of its init_z3.py.

DeepSpeed is not imported: that takes seconds, and a broken release should be readable too.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

from dskit.guard.refusals import GuardError
from dskit.guard.source import Lookup, find_lookup, skips_none_grads

MODULE = "deepspeed.compile.init_z3"
#: Where the file lies in the installed package, and in a patch.
PATH_IN_REPOSITORY = "deepspeed/compile/init_z3.py"


@dataclass(frozen=True)
class Installed:
    """What was found on disk.

    Attributes:
        release: DeepSpeed's own version, "unknown" if it states none.
        package: folder of the package `deepspeed`.
        text: source of init_z3.py, None if there is none to read.
        lookup: the lookup in that source.
        source: "unguarded", "guarded", "unknown" or "absent" (the release has no init_z3).
        skips_none_grads: whether its reduce pass skips parameters without a gradient.
    """

    release: str
    package: Path
    text: str | None
    lookup: Lookup
    source: str
    skips_none_grads: bool

    @property
    def file(self) -> Path:
        """Path of init_z3.py, whether or not it exists."""
        return self.package / "compile" / "init_z3.py"

    @property
    def reduce_pass(self) -> Path:
        """Path of the pass that adds the gradient reduces to the backward graph."""
        return self.package / "compile" / "passes" / "zero3_compile.py"


def read(package: Path | None = None) -> Installed:
    """Read the installed DeepSpeed, or the one in the folder `package`, from its source.

    Raises:
        GuardError: DeepSpeed is not installed.
    """
    package = package or _package()
    file, reduce_pass = (
        package / "compile" / "init_z3.py",
        package / "compile" / "passes" / "zero3_compile.py",
    )
    text, problem = _text(file)
    lookup = find_lookup(text) if text is not None else Lookup("unknown", reason=problem)
    source = lookup.shape if lookup.shape in ("guarded", "unguarded") else "unknown"
    if text is None and not _has_deepcompile_for_zero3(package):
        source, lookup = "absent", Lookup("unknown", reason="the release has no init_z3")
    return Installed(
        release=_release(package),
        package=package,
        text=text,
        lookup=lookup,
        source=source,
        skips_none_grads=skips_none_grads(_text(reduce_pass)[0] or ""),
    )


def _package() -> Path:
    # What is loaded is what runs, wherever sys.path points by now.
    folders = list(getattr(sys.modules.get("deepspeed"), "__path__", []))
    if not folders and "deepspeed" not in sys.modules:
        spec = importlib.util.find_spec("deepspeed")  # a top-level name: nothing is imported
        # Without an origin it is some folder that is called deepspeed, not the package.
        folders = list(spec.submodule_search_locations or []) if spec and spec.origin else []
    if not folders:
        raise GuardError(
            "There is no DeepSpeed to look at.",
            f"{sys.executable} finds no package called deepspeed.",
            "Install it in this environment: pip install 'deepspeed>=0.18.0'",
        )
    return Path(folders[0])


def _text(file: Path) -> tuple[str | None, str]:
    """The text of a source file with its newlines as they are; else None and why."""
    try:
        with file.open("rb") as stream:
            encoding, _ = tokenize.detect_encoding(stream.readline)
        return file.read_bytes().decode(encoding), ""
    except OSError as error:
        return None, f"there is no source file to read: {error.strerror}"
    except (SyntaxError, UnicodeDecodeError) as error:
        return None, f"the source file cannot be decoded: {error}"


def _has_deepcompile_for_zero3(package: Path) -> bool:
    """Whether a DeepSpeed without a readable init_z3.py still has, or may have, an init_z3."""
    if not package.is_dir():  # an archive, say: its content is not visible as files
        return True
    traces = ("init_z3*", "__pycache__/init_z3*", "passes/zero3_compile*")
    return MODULE in sys.modules or any(any((package / "compile").glob(trace)) for trace in traces)


def _release(package: Path) -> str:
    # The package's own word first: metadata may be that of another copy, shadowed by a checkout on the path.
    written, _ = _text(package / "git_version_info_installed.py")
    stated = re.search(r"^version\s*=\s*['\"](.+?)['\"]", written or "", re.MULTILINE)
    if stated:
        return stated[1].strip()
    checkout, _ = _text(package.parent / "version.txt")
    return (checkout or "").strip() or _release_from_metadata()


def _release_from_metadata() -> str:
    from importlib import metadata  # slow to import, and seldom needed

    try:
        return metadata.version("deepspeed")
    except metadata.PackageNotFoundError:
        return "unknown"
