"""The queries of the dashboard, and the names of metrics and labels in a query."""

import json
import re

from .tools import Failure

METRIC = re.compile(r"\brailweave_[a-zA-Z0-9_]+")
# The labels that a query names: in matchers, and in lists such as `by (instance, port)`.
MATCHERS = re.compile(r"\{([^{}]*)\}")
MATCHER = re.compile(r"""([a-zA-Z_][a-zA-Z0-9_]*)\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*\"""")
LIST = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
LABEL_VALUES = re.compile(r"^label_values\((?:(.*),)?\s*([a-zA-Z_][a-zA-Z0-9_]*)\)$")
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")

# Labels that Prometheus adds.
ADDED = {"__name__", "instance", "job"}


class Query:
    """One query: its place, for people, and its text with all variables replaced."""

    def __init__(self, place, text, label=None):
        self.place = place
        self.text = text
        # Set if only the values of this label are asked for, by the series that `text` selects.
        self.label = label

    def metrics(self):
        return sorted(set(METRIC.findall(self.text)))

    def labels(self):
        labels = {self.label} if self.label else set()
        for braces in MATCHERS.findall(self.text):
            labels.update(MATCHER.findall(braces))
        for names in LIST.findall(self.text):
            labels.update(name.strip() for name in names.split(",") if name.strip())
        return labels - ADDED


def substitute(text, place, variables):
    """Returns `text` with the variables of Grafana replaced."""

    def value(found):
        name = found.group(1) or found.group(2)
        if name not in variables:
            raise Failure(f"{place} uses the variable ${name}, which the dashboard does not have")
        return variables[name]

    return VARIABLE.sub(value, text)


def parse(text):
    """Returns the dashboard in `text`."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise Failure(f"the dashboard is not JSON: {error}") from error


def of_dashboard(text, seconds):
    """Returns the queries of the dashboard, its variables' included; `seconds` is the range of rates."""
    dashboard = parse(text)
    own = dashboard["templating"]["list"]
    variables = {one["name"]: one.get("allValue") or ".*" for one in own}
    variables |= {"__rate_interval": f"{seconds}s", "__interval": "1s", "__range": f"{seconds}s"}
    queries = []
    for one in own:
        if one["type"] != "query":
            continue
        place = f"the variable ${one['name']}"
        found = LABEL_VALUES.match(one["query"]["query"])
        if not found:
            raise Failure(f"{place} has the query {one['query']['query']}, which is not label_values(series, label)")
        queries.append(Query(place, substitute(found.group(1) or "up", place, variables), found.group(2)))
    for panel in panels(dashboard):
        for target in panel.get("targets") or []:
            place = f"the panel '{panel['title']}', query {target['refId']}"
            queries.append(Query(place, substitute(target["expr"], place, variables)))
    return queries


def panels(dashboard):
    """Returns all panels but rows, also those in rows that are collapsed."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels") or []
        else:
            yield panel
