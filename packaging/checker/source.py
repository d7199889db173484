"""The metrics to check: those of a running agent, of a file, or of an agent that is started here with a demo."""

import http.server
import os
import stat
import subprocess
import threading
import time
import urllib.error
import urllib.request

from . import exposition, tools
from .tools import Failure


def fetch(url, accept, token_file=None):
    """Returns the text at `url`, asked for in the format `accept`."""
    request = urllib.request.Request(url, headers={"Accept": accept})
    if token_file:
        request.add_header("Authorization", f"Bearer {tools.read(token_file).strip()}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read().decode("utf-8")
    except urllib.error.HTTPError as error:
        hint = "; give --token-file" if error.code in (401, 403) else ""
        raise Failure(f"{url} answers with status {error.code} {error.reason}{hint}") from error
    except (OSError, ValueError) as error:
        raise Failure(f"cannot get {url}: {error}") from error


class Address:
    """An agent that runs already."""

    def __init__(self, url):
        self.url = url if "://" in url else f"http://{url}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def traffic(self, seconds):
        time.sleep(seconds)


class File(Address):
    """A file with metrics, which is served again and again."""

    def __init__(self, path):
        text = tools.read(path)
        kind = exposition.content_type(text)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):  # the name that the class wants
                body = text.encode()
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        super().__init__(f"http://127.0.0.1:{self.server.server_address[1]}/metrics")

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()


class Program(Address):
    """An agent that is started here, and `railweave demo`, which gives it something to see."""

    def __init__(self, program, folder):
        self.program = os.path.abspath(program)
        if not (os.path.isfile(self.program) and os.access(self.program, os.X_OK)):
            raise Failure(f"{program} is no program; build it with cargo build --release --package railweave-cli")
        self.run_dir = os.path.join(folder, "run")
        os.mkdir(self.run_dir, stat.S_IRWXU)
        self.log = os.path.join(folder, "agent.log")
        self.demo_log = os.path.join(folder, "demo.log")
        self.address = f"127.0.0.1:{tools.free_port()}"
        self.process = None
        super().__init__(f"http://{self.address}/metrics")

    def __enter__(self):
        command = [self.program, "agent", "--run-dir", self.run_dir, "--listen", self.address]
        # Its socket is in the run dir that the environment names.
        environment = dict(os.environ, RAILWEAVE_RUN_DIR=self.run_dir)
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def ready(self):
        """Waits until the agent says that it is ready."""
        end = time.monotonic() + 20
        said = ""
        while time.monotonic() < end:
            if self.process.poll() is not None:
                lines = "\n        ".join(tools.read(self.log).splitlines()[-10:])
                raise Failure(f"the agent ended with status {self.process.returncode}:\n        {lines}")
            try:
                for path in ("healthz", "readyz"):
                    fetch(f"http://{self.address}/{path}", "*/*")
                return
            except Failure as failure:
                said = str(failure)
                time.sleep(0.1)
        raise Failure(f"the agent was not ready after 20 s: {said}")

    def traffic(self, seconds):
        """Runs demos for `seconds`, or longer if one still runs."""
        end = time.monotonic() + seconds
        environment = dict(os.environ, RAILWEAVE_RUN_DIR=self.run_dir, SLURM_JOB_ID="4711")
        # More data than --quick moves, because a look at the files should fall into it.
        command = [self.program, "demo", "--quick", "--bytes", "512MiB"]
        while time.monotonic() < end:
            with open(self.demo_log, "w", encoding="utf-8") as log:
                done = subprocess.run(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
                )
            if done.returncode != 0:
                lines = "\n        ".join(tools.read(self.demo_log).splitlines()[-10:])
                raise Failure(f"`railweave demo` ended with status {done.returncode}:\n        {lines}")

    def end(self):
        """Ends the agent as systemd does; fails if it does not end in good order."""
        status = tools.stop(self.process, "the agent")
        if status != 0:
            lines = "\n        ".join(tools.read(self.log).splitlines()[-10:])
            raise Failure(f"the agent ended with status {status} after SIGTERM, and not 0:\n        {lines}")
