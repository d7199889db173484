"""Programs that the checks start, the environment with their Python packages, and the list of what was found."""

import hashlib
import os
import shutil
import socket
import subprocess
import venv

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGING = os.path.join(ROOT, "packaging")


class Failure(Exception):
    """One sentence that says what is wrong, and what to try."""


class Report:
    """The outcome of each check, printed as it comes."""

    def __init__(self):
        self.failures = 0

    def check(self, name, action):
        """Runs `action`, which returns a word about what it did; returns true if it did not fail."""
        try:
            said = action()
        except Failure as failure:
            self.failures += 1
            print(f"FAILED  {name}: {failure}", flush=True)
            return False
        print(f"ok      {name}{f': {said}' if said else ''}", flush=True)
        return True

    def skip(self, name, reason):
        print(f"skipped {name}: {reason}", flush=True)


def inside(*parts):
    """Returns a path in packaging/."""
    return os.path.join(PACKAGING, *parts)


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}") from error


def debian(program, package):
    """Fails if `program`, which a package of Debian has, is not installed."""
    if shutil.which(program) is None:
        raise Failure(f"the program {program} is missing; as root: apt-get install --no-install-recommends {package}")


def run(command, about, folder=None, text=None):
    """Runs `command` and returns what it printed. If it fails, says so with its last lines."""
    try:
        encoded = {"text": True, "encoding": "utf-8", "errors": "replace"}
        done = subprocess.run(command, cwd=folder, input=text, capture_output=True, check=False, **encoded)
    except OSError as error:
        raise Failure(f"cannot start {command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise Failure("\n        ".join([f"{about} (exit status {done.returncode}):", *said[-20:]]))
    return done.stdout


def environment(scratch):
    """Returns the Python of an environment in the folder `scratch` that has the packages of requirements.txt."""
    wanted = inside("requirements.txt")
    stamp = os.path.join(scratch, "venv", "requirements.sha256")
    python = os.path.join(scratch, "venv", "bin", "python")
    digest = hashlib.sha256(read(wanted).encode()).hexdigest()
    if os.path.exists(stamp) and read(stamp) == digest:
        return python
    shutil.rmtree(os.path.join(scratch, "venv"), ignore_errors=True)
    try:
        venv.create(os.path.join(scratch, "venv"), with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failure(f"cannot make an environment for Python packages: {error}; Debian: python3-venv") from error
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", wanted]
    run(pip, f"pip cannot install the packages of {wanted}; is there a network, or give --python")
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(digest)
    return python


def free_port():
    """Returns a port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def stop(process, about, seconds=15):
    """Ends `process` with SIGTERM and returns its exit status; kills it if it does not end in `seconds`."""
    process.terminate()
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise Failure(f"{about} did not end within {seconds} s of SIGTERM, and was killed") from None
