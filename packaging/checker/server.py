"""A Prometheus of the checks' own, which scrapes one agent every second."""

import json
import os
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

from . import tools
from .queries import Query
from .tools import Failure

CONFIG = """\
global:
  scrape_interval: 1s
  scrape_timeout: 1s
  evaluation_interval: 1s
rule_files: [{rules}]
scrape_configs:
  - job_name: railweave-agent
    scheme: {scheme}
    metrics_path: {path}
{token}    static_configs:
      - targets: [{target}]
"""


class Prometheus:
    """A running Prometheus. Use it in a `with` statement, which ends it."""

    def __init__(self, url, token_file, folder):
        self.url = f"http://127.0.0.1:{tools.free_port()}"
        self.target = url
        parts = urllib.parse.urlsplit(url)
        token = ""
        if token_file:
            token = f"    authorization: {{credentials_file: {json.dumps(os.path.abspath(token_file))}}}\n"
        config = os.path.join(folder, "prometheus.yml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(
                CONFIG.format(
                    rules=json.dumps(tools.inside("prometheus", "railweave.rules.yml")),
                    scheme=parts.scheme,
                    path=json.dumps(parts.path or "/metrics"),
                    target=json.dumps(parts.netloc),
                    token=token,
                )
            )
        self.log = os.path.join(folder, "prometheus.log")
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={config}",
                    f"--storage.tsdb.path={os.path.join(folder, 'data')}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def wait(self, seconds=30):
        """Waits until it answers."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        last = "\n        ".join(tools.read(self.log).splitlines()[-5:])
        raise Failure(f"Prometheus did not get ready; its last lines:\n        {last}")

    def ask(self, path, **arguments):
        """Returns the data of an answer of its API."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(arguments, doseq=True)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                answered = json.load(answer)
        except urllib.error.HTTPError as error:
            said = error.read().decode("utf-8", "replace")
            try:
                said = json.loads(said)["error"]
            except (ValueError, KeyError):
                pass
            raise Failure(said) from error
        except OSError as error:
            raise Failure(f"Prometheus does not answer: {error}") from error
        if answered.get("warnings"):
            raise Failure("; ".join(answered["warnings"]))
        return answered["data"]

    def scrapes(self, seconds=20):
        """Waits until it has scraped the agent; it starts some seconds after it is ready. Fails if it could not."""
        end = time.monotonic() + seconds
        reason = "it has not been scraped yet"
        while time.monotonic() < end:
            for target in self.ask("targets")["activeTargets"]:
                if target["health"] == "up":
                    return
                reason = target["lastError"] or reason
                if target["lastError"]:
                    end = min(end, time.monotonic() + 3)
            time.sleep(0.2)
        raise Failure(f"Prometheus cannot scrape {self.target}: {reason}")

    def rules(self):
        """Returns the queries of the alert rules, and fails if one of them could not be evaluated."""
        rules = [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]
        for rule in rules:
            if rule["health"] != "ok":
                raise Failure(f"the rule {rule['name']} is {rule['health']}: {rule.get('lastError')}")
        return [Query(f"the alert {rule['name']}", rule["query"]) for rule in rules]

    def has_result(self, query, seconds):
        """Runs `query` over the last seconds; returns true if there was a result at any time. Fails if it is wrong."""
        try:
            if query.label:
                return bool(self.ask(f"label/{query.label}/values", **{"match[]": query.text}))
            now = time.time()
            found = self.ask("query_range", query=query.text, start=now - seconds, end=now, step=1)
            return bool(found["result"])
        except Failure as failure:
            raise Failure(f"{query.place}: {failure}\n        {query.text}") from failure

    def labels(self, metric):
        """Returns the names of the labels that the series of `metric` have had, or an empty set if there are none."""
        found = self.ask("series", **{"match[]": metric})
        return {name for series in found for name in series}
