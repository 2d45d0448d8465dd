#!/usr/bin/env python3
"""From a fresh clone to a running evoattn, with nothing but Python 3.11 or newer and the standard library.

  python3 dev.py demo               set up .venv if needed, then find contacts from a shipped alignment (writes demo_out/)
  python3 dev.py test [-- ARGS]     set up .venv if needed, then ruff, mypy and pytest (ARGS go to pytest)
  python3 dev.py setup              only set up .venv

The set-up is done once, and again when pyproject.toml changes. PyTorch comes first, from wherever pip is configured to
look; on Linux that is usually a build with CUDA, of several GB. A machine without an NVIDIA GPU is better served by a
CPU build: name a package index that offers one with --torch-index URL (PyTorch's install page lists them).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if sys.platform == "win32" else "bin")
STAMP = VENV / "evoattn-ready"  # written last: it holds what the environment was built from
LOG = VENV / "pip.log"
TORCH = "torch==2.13.0"  # the version that the tests run; installed first, so that nothing else decides the build
DEMO = ["contacts", "data/dhfr.a3m.gz", "--structure", "data/3ql0.pdb.gz", "--out", "demo_out", "--force"]


def say(text: str) -> None:
    print(f"[dev] {text}", flush=True)


def fail(text: str) -> None:
    sys.exit(f"[dev] error: {text}")


def fingerprint() -> str:
    """What a ready environment depends on: Python and folder (the first line), the torch version, pyproject.toml."""
    project = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    return f"Python {sys.version_info[0]}.{sys.version_info[1]} in {ROOT}\n{TORCH}\npyproject.toml {project}\n"


def pip_install(what: list[str], why: str) -> None:
    say(f"installing {why} (details in {LOG.relative_to(ROOT)}) ...")
    started = time.monotonic()
    with LOG.open("a") as log:
        command = [str(BIN / "python"), "-m", "pip", "install", "--disable-pip-version-check", *what]
        done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    if done.returncode:
        last_lines = "\n".join(LOG.read_text(errors="replace").splitlines()[-12:])
        fail(
            f"pip could not install {why}. Its last lines:\n\n{last_lines}\n\n"
            "If they speak of a connection: check the network or the proxy.\n"
            f"If they speak of no matching distribution: there may be no build for Python {sys.version.split()[0]}; "
            "try another Python >= 3.11, or --torch-index URL.\nThen run the same command again."
        )
    say(f"  done in {time.monotonic() - started:.0f} s")


def make_venv() -> None:
    say(f"creating {VENV.relative_to(ROOT)} with Python {sys.version.split()[0]} ...")
    try:
        venv.create(VENV, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        fail(
            f"Python could not create a virtual environment: {error}\n"
            "On Debian and Ubuntu it needs the package python3-venv; elsewhere check that the folder can be written to."
        )


def setup(torch_index: str | None) -> None:
    """Make .venv ready; return at once when it already is."""
    built_from = STAMP.read_text() if STAMP.exists() else ""
    if built_from == fingerprint():
        return
    made_with, this = built_from.split("\n")[0], fingerprint().split("\n")[0]
    if built_from and made_with != this:
        fail(f"{VENV} was made with {made_with}, but this is {this}: delete that folder and run again.")
    STAMP.unlink(missing_ok=True)
    make_venv()
    LOG.unlink(missing_ok=True)
    pip_install([TORCH, *(["--extra-index-url", torch_index] if torch_index else [])], TORCH)
    pip_install(["-e", ".[dev]"], "evoattn with its test tools")
    STAMP.write_text(fingerprint())
    say("ready")


def run(*command: str) -> None:
    """Run one of the environment's programs in the project folder; a failure ends this script with its exit status."""
    say(" ".join(command))
    status = subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT).returncode
    if status:
        sys.exit(status)


def main() -> None:
    if sys.version_info < (3, 11):
        fail(f"evoattn needs Python 3.11 or newer, and this is {sys.version.split()[0]}: try python3.11 dev.py ...")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["demo", "test", "setup"])
    parser.add_argument("--torch-index", metavar="URL", help="a further package index in which pip looks for torch")
    own, pytest_args = sys.argv[1:], []
    if "--" in own:
        split = own.index("--")
        own, pytest_args = own[:split], own[split + 1 :]
    options = parser.parse_args(own)
    if pytest_args and options.command != "test":
        parser.error("arguments after -- go to pytest, so they need the command test")

    setup(options.torch_index)
    if options.command == "demo":
        run("evoattn", *DEMO)
    elif options.command == "test":
        run("ruff", "check")
        run("mypy")
        workers = str(min(4, os.cpu_count() or 1))  # each test keeps to one thread
        run("pytest", "--durations=10", "-n", workers, "--dist", "loadfile", *pytest_args)


if __name__ == "__main__":
    main()
