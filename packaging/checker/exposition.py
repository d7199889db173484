"""Metrics as text: the formats OpenMetrics 1.0 and Prometheus 0.0.4."""

import re

from .tools import Failure

# The names of samples that a family of each type has, by what is added to the family's name in OpenMetrics.
ENDINGS = {
    "counter": ["_total", "_created"],
    "gauge": [""],
    "histogram": ["_bucket", "_count", "_sum", "_created"],
    "gaugehistogram": ["_bucket", "_gcount", "_gsum"],
    "summary": ["", "_count", "_sum", "_created"],
    "info": ["_info"],
    "stateset": [""],
    "unknown": [""],
    "untyped": [""],
}

TYPE = re.compile(r"^# TYPE (\S+) (\S+)$")
SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{| )")
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"


def is_open(text):
    """Returns true for OpenMetrics, which ends with a line of its own."""
    return text.rstrip("\n").endswith("# EOF")


def content_type(text):
    return OPEN if is_open(text) else PLAIN


def families(text):
    """Returns the types of the families, by name, as the lines `# TYPE` say."""
    types = {}
    for line in text.splitlines():
        found = TYPE.match(line)
        if found:
            name, kind = found.groups()
            if kind not in ENDINGS:
                raise Failure(f"the family {name} has the type {kind}, which is none of {', '.join(ENDINGS)}")
            if name in types:
                raise Failure(f"the family {name} has two TYPE lines: print the samples of a family together")
            types[name] = kind
    if not types:
        raise Failure("the metrics have no line that begins with # TYPE: is this the address of an agent's /metrics?")
    return types


def known_names(types):
    """Returns the names of all samples that families of these types may have, each with its family."""
    names = {}
    for family, kind in types.items():
        # In Prometheus' own format a counter's family already ends in _total.
        endings = [""] if kind == "counter" and family.endswith("_total") else ENDINGS[kind]
        names.update({family + ending: family for ending in endings})
    return names


def sample_names(text):
    """Returns the names of the samples in the text."""
    return {found.group(1) for found in map(SAMPLE.match, text.splitlines()) if found}


def plain(text):
    """Returns OpenMetrics text in Prometheus' own format, which promtool reads."""
    if not is_open(text):
        return text
    types = families(text)
    lines = []
    for line in text.splitlines():
        parts = line.split(" ", 3)
        if line.startswith(("# TYPE ", "# HELP ")) and parts[2] in types:
            kind = types[parts[2]]
            if kind == "counter":
                parts[2] += "_total"
            elif kind == "info":
                parts[2] += "_info"
            if parts[1] == "TYPE":
                parts[3] = {"info": "gauge", "stateset": "gauge", "unknown": "untyped"}.get(kind, kind)
            lines.append(" ".join(parts))
        elif line != "# EOF" and not line.startswith("# UNIT ") and "_created" not in line.split("{")[0].split(" ")[0]:
            lines.append(line)
    return "\n".join(lines) + "\n"
