#!/usr/bin/env python3
"""Checks the files in packaging/ against the metrics of a running agent, with a real Prometheus.

    python3 packaging/check.py                                  # only what needs no agent
    python3 packaging/check.py http://127.0.0.1:9470/metrics    # an agent that runs
    python3 packaging/check.py FILE                             # metrics in a file
    python3 packaging/check.py --railweave target/release/railweave   # starts an agent and demos itself

It needs Python 3.11 and Debian's packages prometheus and python3-venv. It installs the Python packages of
requirements.txt into an environment in --scratch, which is kept for the next run. Every check is a line of the output;
it fails if one of them failed.
"""

import argparse
import contextlib
import glob
import os
import re
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
from checker import exposition, queries, server, settings, source, tools  # noqa: E402 (the line above comes first)
from checker.tools import Failure  # noqa: E402

DASHBOARD = tools.inside("grafana", "railweave.json")
PAGE = os.path.join(tools.ROOT, "docs", "monitoring.md")

# The metrics that an agent has series of while a demo runs, whatever the machine.
IN_A_DEMO = [
    "railweave_agent_info",
    "railweave_agent_look_seconds",
    "railweave_connections",
    "railweave_processes",
    "railweave_rail_received_bytes_total",
    "railweave_rail_sent_bytes_total",
    "railweave_rail_write_latency_seconds_bucket",
    "railweave_rails",
]

# Reads OpenMetrics as strictly as its specification; runs in the environment.
STRICT = """
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families
try:
    print(f"{len(list(families(sys.stdin.read())))} families")
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def main():
    arguments = parse()
    report = tools.Report()
    with tempfile.TemporaryDirectory(prefix="railweave-check-") as folder:
        check_files(report, arguments)
        try:
            chosen = choose(arguments, folder)
        except Failure as failure:
            report.check("the source of metrics", lambda: raise_again(failure))
            chosen = None
        if chosen:
            with chosen:
                check_agent(report, arguments, chosen, folder)
        elif not (arguments.source or arguments.railweave):
            report.skip("metrics and queries", "give the address of an agent, a file, or --railweave PROGRAM")
    if report.failures:
        print(f"{report.failures} checks failed")
    return 1 if report.failures else 0


def raise_again(failure):
    raise failure


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("source", nargs="?", help="the address of an agent's metrics, or a file with metrics")
    parser.add_argument("--railweave", "--agent", metavar="PROGRAM", help="start this program as agent, and its demo")
    parser.add_argument("--seconds", type=int, default=10, help="the time for which the agent is scraped (default: 10)")
    parser.add_argument("--token-file", metavar="FILE", help="the token of the agent at the address")
    parser.add_argument("--scratch", metavar="FOLDER", help="where the Python environment is kept")
    parser.add_argument("--python", metavar="PROGRAM", help="a Python with the packages of requirements.txt")
    parser.add_argument("--update", action="store_true", help="write the dashboard to its file if that is another one")
    arguments = parser.parse_args()
    if arguments.source and arguments.railweave:
        parser.error("give an address or a file, or --railweave, but not both")
    if not 3 <= arguments.seconds <= 600:
        parser.error(f"--seconds is {arguments.seconds}, but 3 to 600 are possible")
    if not arguments.scratch:
        arguments.scratch = os.path.join(tools.ROOT, "target", "packaging")
    return arguments


def choose(arguments, folder):
    """Returns where the metrics come from, or `None` if there are none to check."""
    if arguments.railweave:
        return source.Program(arguments.railweave, folder)
    if not arguments.source:
        return None
    if os.path.exists(arguments.source):
        return source.File(arguments.source)
    if "/" not in arguments.source and ":" not in arguments.source:
        raise Failure(f"{arguments.source} is neither a file nor an address such as http://127.0.0.1:9470/metrics")
    return source.Address(arguments.source)


def check_files(report, arguments):
    """Checks everything that needs no agent."""
    rules = tools.inside("prometheus", "railweave.rules.yml")
    tests = tools.inside("prometheus", "railweave.rules.test.yml")
    scrape = tools.inside("prometheus", "scrape.yml")
    report.check("alert rules", lambda: promtool("check", "rules", rules))
    report.check("tests of the alert rules", lambda: promtool("test", "rules", tests))
    report.check("a test for each alert", lambda: all_named(alerts(), tests))
    report.check("example of a scrape configuration", lambda: promtool("check", "config", "--syntax-only", scrape))
    report.check("panels and alerts in docs/monitoring.md", lambda: all_named(panels() + alerts(), PAGE))
    report.check("findings in docs/monitoring.md", lambda: all_named(findings(), PAGE))
    report.check("example of a configuration", example)
    check_units(report)
    if not arguments.python and not report.check("Python packages", lambda: install(arguments)):
        return
    report.check("dashboard", lambda: dashboard(arguments))
    for path in sorted(glob.glob(tools.inside("kubernetes", "*.yaml"))):
        report.check(os.path.basename(path), lambda path=path: kubernetes(arguments, path))


def promtool(*words):
    tools.debian("promtool", "prometheus")
    # Paths in files of tests are relative to the folder of the file.
    tools.run(["promtool", *words], f"promtool {' '.join(words[:2])} fails", folder=os.path.dirname(words[-1]))


def install(arguments):
    os.makedirs(arguments.scratch, exist_ok=True)
    arguments.python = tools.environment(os.path.abspath(arguments.scratch))


def alerts():
    rules = tools.read(tools.inside("prometheus", "railweave.rules.yml"))
    return re.findall(r"^\s*- alert: (\w+)$", rules, re.MULTILINE)


def findings():
    """Returns the kinds of findings, as in a table of docs/monitoring.md."""
    text = tools.read(os.path.join(tools.ROOT, "crates", "agent", "src", "findings.rs"))
    table = re.search(r"pub const KINDS: .*?= \[(.*?)\n\];", text, re.DOTALL)
    kinds = re.findall(r'^    \("([a-z-]+)", ', table.group(1), re.MULTILINE) if table else []
    if not kinds:
        raise Failure("crates/agent/src/findings.rs has no table KINDS any more; change packaging/check.py")
    return [f"| `{kind}` |" for kind in kinds]


def panels():
    made = queries.parse(tools.read(DASHBOARD))
    for panel in queries.panels(made):
        if not panel.get("description"):
            raise Failure(f"the panel '{panel['title']}' has no description")
    return [panel["title"] for panel in queries.panels(made)]


def all_named(names, path):
    """Fails if a name is missing in the file `path`."""
    text = tools.read(path)
    missing = [name for name in names if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]
    if missing:
        raise Failure(f"{os.path.relpath(path, tools.ROOT)} does not name {', '.join(missing)}")
    return f"{len(names)}"


def dashboard(arguments):
    """Makes the dashboard, and compares it with the file."""
    script = tools.inside("grafana", "dashboard.py")
    made = tools.run([arguments.python, "-B", script], "dashboard.py fails")
    if os.path.exists(DASHBOARD) and tools.read(DASHBOARD) == made:
        return f"{len(list(queries.panels(queries.parse(made))))} panels"
    if not arguments.update:
        raise Failure("dashboard.py makes another dashboard than packaging/grafana/railweave.json; run with --update")
    with open(DASHBOARD, "w", encoding="utf-8") as file:
        file.write(made)
    return "written"


def kubernetes(arguments, path):
    """Checks a file against the schemas of Kubernetes; kinds that others define are read, and not checked further."""
    said = tools.run(
        [arguments.python, "-m", "kubernetes_validate", "--strict", path], "not valid for Kubernetes"
    )
    passed = len(re.findall(r"passed for resource", said))
    return f"{passed} checked" if passed else "no schema, read as YAML"


def example():
    """Compares the example of a configuration with what the agent reads."""
    config = os.path.join(tools.ROOT, "crates", "agent", "src", "config.rs")
    return settings.check(tools.read(tools.inside("agent.toml")), tools.read(config))


def check_units(report):
    """Checks the units with systemd's own program, if it is there."""
    units = sorted(glob.glob(tools.inside("systemd", "*.service")))
    if not shutil.which("systemd-analyze"):
        report.skip("systemd units", "systemd-analyze is missing (Debian: systemd)")
        return
    for path in units:
        report.check(os.path.basename(path), lambda path=path: unit(path))


def unit(path):
    user = path.endswith("-user.service")
    with tempfile.TemporaryDirectory(prefix="railweave-unit-") as folder:
        # It wants to see the program, which need not be installed here.
        program = os.path.join(folder, "railweave")
        with open(program, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n")
        os.chmod(program, 0o755)
        text = re.sub(r"^ExecStart=\S+", f"ExecStart={program}", tools.read(path), flags=re.MULTILINE)
        copy = os.path.join(folder, os.path.basename(path))
        with open(copy, "w", encoding="utf-8") as file:
            file.write(text)
        manager = ["env", f"XDG_RUNTIME_DIR={folder}", "systemd-analyze", *(["--user"] if user else [])]
        said = tools.run([*manager, "verify", "--man=no", copy], "systemd-analyze verify fails")
    if user:
        return said.strip()
    # In tenths: the unit of the system must not become more exposed than this.
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", path]
    said = tools.run(command, "systemd-analyze security finds more exposure than 2.0")
    found = re.search(r"exposure level for \S+: ([\d.]+)", said)
    return f"exposure {found.group(1)}" if found else ""


def check_agent(report, arguments, chosen, folder):
    """Checks the metrics of `chosen`, and all queries with a Prometheus that scrapes it."""
    started = isinstance(chosen, source.Program)
    if started and not report.check("the agent starts", chosen.ready):
        return
    with contextlib.ExitStack() as stack:
        try:
            tools.debian("prometheus", "prometheus")
            prometheus = stack.enter_context(server.Prometheus(chosen.url, arguments.token_file, folder))
        except Failure as failure:
            report.check("Prometheus starts", lambda: raise_again(failure))
            return
        if not report.check("Prometheus starts", prometheus.wait):
            return
        if not report.check("Prometheus scrapes", prometheus.scrapes):
            return
        name = "demos while Prometheus scrapes" if started else f"{arguments.seconds} s of scrapes"
        report.check(name, lambda: chosen.traffic(arguments.seconds))
        report.check("Prometheus still scrapes", prometheus.scrapes)
        texts = {}
        if report.check("the format of the metrics", lambda: formats(arguments, chosen, texts)):
            report.check("promtool on the metrics", lambda: lint(texts["plain"]))
            report.check("metrics in queries", lambda: check_queries(arguments, prometheus, texts["open"], started))
    if started:
        report.check("the agent ends", chosen.end)


def formats(arguments, chosen, texts):
    """Gets the metrics in both formats, and reads them strictly."""
    texts["open"] = source.fetch(chosen.url, exposition.OPEN, arguments.token_file)
    texts["plain"] = exposition.plain(source.fetch(chosen.url, exposition.PLAIN, arguments.token_file))
    exposition.families(texts["open"])
    if not exposition.is_open(texts["open"]):
        return "no OpenMetrics"
    if not arguments.python:
        return "not read strictly, because the Python packages are missing"
    return tools.run([arguments.python, "-c", STRICT], "the text is not valid OpenMetrics", text=texts["open"]).strip()


def lint(text):
    tools.debian("promtool", "prometheus")
    tools.run(["promtool", "check", "metrics"], "promtool check metrics complains", text=text)


def check_queries(arguments, prometheus, text, started):
    """Runs all queries; fails if one is wrong, or names a metric or label that the agent does not have."""
    types = exposition.families(text)
    known = exposition.known_names(types)
    asked = queries.of_dashboard(tools.read(DASHBOARD), max(4, arguments.seconds)) + prometheus.rules()
    series = {name: prometheus.labels(name) for query in asked for name in query.metrics() if name in known}
    problems, empty = [], []
    for query in asked:
        unknown = [name for name in query.metrics() if name not in known]
        problems += [f"{query.place} names {name}, which the agent does not have (no line # TYPE)" for name in unknown]
        seen = [series[name] for name in query.metrics() if series.get(name)]
        if seen and not unknown:
            strange = sorted(query.labels() - set().union(*seen))
            # A label may be missing because the series that has it is not there.
            if len(seen) == len(query.metrics()):
                problems += [f"{query.place} names the label {label}, which no series has" for label in strange]
        try:
            if not prometheus.has_result(query, arguments.seconds + 5):
                empty.append(query.place)
        except Failure as failure:
            problems.append(str(failure))
    if started:
        missing = [name for name in IN_A_DEMO if not prometheus.labels(name)]
        problems += [f"there was no series of {name} while the demo ran" for name in missing]
    without = sorted(name for name in series if not series[name])
    used = {known[name] for name in series}
    tell("metrics without a series now", without)
    tell("queries without a result now", [place for place in empty if not place.startswith("the alert")])
    # There are far more counters of ports than anybody wants to see at once.
    unused = (name for name in set(types) - used if not name.startswith("railweave_port_"))
    tell("metrics that no query uses", sorted(unused))
    if problems:
        raise Failure("\n        ".join([f"{len(problems)} problems:", *problems]))
    return f"{len(asked)} queries, {len(series)} metrics"


def tell(title, names):
    if names:
        print(f"note    {title}: {', '.join(names)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
