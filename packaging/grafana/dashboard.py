"""Makes railweave.json, the Grafana dashboard, with Grafana's Foundation SDK.

    python3 dashboard.py            # prints the dashboard
    python3 dashboard.py FILE       # writes it to FILE

The SDK is the package grafana-foundation-sdk, in the version that packaging/requirements.txt names.
packaging/check.py installs it, and fails if the file that is checked in is another one.
"""

import json
import sys

from grafana_foundation_sdk.builders import common, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")

# The series that the variables at the top of the dashboard choose.
RAIL = 'instance=~"$instance", job_id=~"$job", peer_host=~"$peer", port=~"$port"'
PEER = 'instance=~"$instance", job_id=~"$job", peer_host=~"$peer"'
JOB = 'instance=~"$instance", job_id=~"$job"'
PORT = 'instance=~"$instance", port=~"$port"'
AGENT = 'instance=~"$instance"'

# Rails are summed over users, jobs and peers, so that a panel stays readable on a host that talks to a hundred others.
BY_RAIL = "instance, device, rail, port"
RAIL_NAME = "{{instance}} rail {{rail}} ({{port}})"
PORT_NAME = "{{instance}} {{port}}"

# The states of a rail from good to bad, with the colour of each. A rail of several connections shows the worst.
STATES = [
    ("up", "green"),
    ("drained", "blue"),
    ("unknown", "text"),
    ("repairing", "yellow"),
    ("suspected", "orange"),
    ("never_up", "purple"),
    ("down", "red"),
]


def rate(metric, labels, by):
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))"


def quantile(part):
    buckets = f"rate(railweave_rail_write_latency_seconds_bucket{{{RAIL}}}[$__rate_interval])"
    return f"histogram_quantile({part}, sum by (instance, port, le) ({buckets}))"


def query(expression, legend):
    return prometheus.Dataquery().expr(expression).legend_format(legend).datasource(SOURCE).range()


def thresholds(*steps):
    """Returns colours: each of `steps` is the least value of a colour and the colour; the first has no least value."""
    made = [models.Threshold(value=None if value is None else float(value), color=color) for value, color in steps]
    return build.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(made)


def with_queries(panel, title, description, queries):
    panel = panel.title(title).description(description).datasource(SOURCE)
    for index, (expression, legend) in enumerate(queries):
        panel = panel.with_target(query(expression, legend).ref_id(chr(ord("A") + index)))
    return panel


def number(title, description, expression, bad_from=None, color="red", width=3):
    """Returns one number, which is green, or has `color` from `bad_from` on."""
    steps = [(None, "green")] + ([] if bad_from is None else [(bad_from, color)])
    panel = with_queries(stat.Panel(), title, description, [(expression, title)])
    reduced = common.ReduceDataOptions().calcs(["lastNotNull"])
    return (
        panel.thresholds(thresholds(*steps))
        .reduce_options(reduced)
        .graph_mode(common_models.BigValueGraphMode.AREA)
        .color_mode(common_models.BigValueColorMode.VALUE)
        .no_value("0")
        .height(4)
        .span(width)
    )


def lines(title, description, queries, unit, width=12, least=0.0, most=None, stacked=False):
    """Returns curves over time, with a legend that lists the last and the largest value of each."""
    legend = (
        common.VizLegendOptions()
        .display_mode(common_models.LegendDisplayMode.TABLE)
        .placement(common_models.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
    )
    tooltip = common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI)
    panel = with_queries(timeseries.Panel(), title, description, queries)
    panel = panel.unit(unit).min(least).legend(legend).tooltip(tooltip).fill_opacity(10.0).line_width(1.0)
    panel = panel.show_points(common_models.VisibilityMode.NEVER).height(8).span(width)
    if most is not None:
        panel = panel.max(most)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    return panel


def timeline(title, description, queries, words, width=12):
    """Returns a band over time for each series; `words` are the name and the colour of the values 0, 1 and so on."""
    results = {
        str(value): models.ValueMappingResult(text=word, color=color, index=value)
        for value, (word, color) in enumerate(words)
    }
    panel = with_queries(statetimeline.Panel(), title, description, queries)
    return (
        panel.mappings([models.ValueMap(options=results)])
        .thresholds(thresholds((None, "text")))
        .show_value(common_models.VisibilityMode.NEVER)
        .merge_values(True)
        .row_height(0.8)
        .height(8)
        .span(width)
    )


def worst_state():
    """Returns the query for the number in STATES of the worst state of each rail."""
    selected = [
        f'(railweave_rails{{{RAIL}, state="{state}"}} > 0) * 0 + {value}' for value, (state, _) in enumerate(STATES)
    ]
    return f"max by ({BY_RAIL}) ({' or '.join(selected)})"


def overview():
    not_up = 'state=~"down|never_up|suspected|repairing"'
    return [
        number(
            "Rails up",
            "Rails that carry data, over all connections. It falls when jobs end; when it falls and 'Rails not up' "
            "rises, paths have failed.",
            f'sum(railweave_rails{{{RAIL}, state="up"}})',
        ),
        number(
            "Rails not up",
            "Rails that are down, never came up, are suspected or are being repaired. Their connections go on over the "
            "others. 'State of each rail' shows which they are.",
            f"sum(railweave_rails{{{RAIL}, {not_up}}})",
            bad_from=1,
        ),
        number(
            "Processes",
            "Processes that write their telemetry; those of other containers, whose presence is not known, included.",
            f'sum(railweave_processes{{{JOB}, presence=~"running|unknown"}})',
        ),
        number(
            "Processes silent",
            "Processes that are not gone, but have not written for 10 s: stopped, hung, or without any CPU time.",
            f'sum(railweave_processes{{{JOB}, presence="silent"}})',
            bad_from=1,
        ),
        number(
            "Connections",
            "Connections that are open.",
            f'sum(railweave_connections{{{PEER}, state="open"}})',
        ),
        number(
            "Connections failed",
            "Connections that ended with an error. NCCL then aborts the job; the reason is in the job's log.",
            f'sum(railweave_connections{{{PEER}, state="failed"}})',
            bad_from=1,
        ),
        number(
            "Findings",
            "The present findings of the agents, but for those that only explain. 'Present findings' shows them all.",
            f'sum(railweave_findings{{{AGENT}, severity=~"warning|critical"}})',
            bad_from=1,
            color="orange",
        ),
        number(
            "Ports kept empty",
            "Ports that the agent keeps empty, because they are drained or sick.",
            f"count(max by (instance, port) (railweave_port_drained{{{PORT}}}) == 1)",
            bad_from=1,
            color="blue",
        ),
    ]


def rails():
    by_peer = "instance, peer_host"
    return [
        lines(
            "Sent by rail",
            "Data that each rail sent per second. Compare it with the reported speed: a rail far below it while the "
            "job waits is slow or drained.",
            [(rate("railweave_rail_sent_bytes_total", RAIL, BY_RAIL), RAIL_NAME)],
            "Bps",
            stacked=True,
        ),
        lines(
            "Received by rail",
            "Data that each rail received per second. The sender splits it, so look at the sender's shares.",
            [(rate("railweave_rail_received_bytes_total", RAIL, BY_RAIL), RAIL_NAME)],
            "Bps",
            stacked=True,
        ),
        lines(
            "Share and expected share",
            "The part of the data that each rail of a connection carries now, next to the part that its reported speed "
            "would give it among the rails that are up; means over jobs and peers. Curves that stay more than 0.15 "
            "apart mean that the split does not follow the speeds: weights, a policy, or a path that is slow behind "
            "its port.",
            [
                (f"avg by ({BY_RAIL}) (railweave_rail_share_ratio{{{RAIL}}})", f"{RAIL_NAME} share"),
                (f"avg by ({BY_RAIL}) (railweave_rail_expected_share_ratio{{{RAIL}}})", f"{RAIL_NAME} expected"),
            ],
            "percentunit",
            most=1.0,
        ),
        timeline(
            "State of each rail",
            "The worst state among the connections of each rail. Red: down, and the others carry its data. Orange and "
            "yellow: suspected, being repaired. Purple: it never came up. Blue: drained on purpose.",
            [(worst_state(), RAIL_NAME)],
            STATES,
        ),
        lines(
            "In flight",
            "Bytes that were posted and have not completed. If it grows on one rail only, that path is slow or stuck.",
            [(f"sum by ({BY_RAIL}) (railweave_rail_in_flight_bytes{{{RAIL}}})", RAIL_NAME)],
            "bytes",
        ),
        lines(
            "Latency of writes",
            "The latency that half, and 99 %, of the sampled writes did not exceed, by port. Buckets are powers of "
            "two, so a step of a factor of two may be small in truth.",
            [(quantile(0.5), f"{PORT_NAME} p50"), (quantile(0.99), f"{PORT_NAME} p99")],
            "s",
        ),
        lines(
            "Waits for CTS",
            "Messages per second that the sender had ready before the receiver's clear-to-send came. If it is near the "
            "rate of messages, the receivers are late: the network is not the limit.",
            [
                (rate("railweave_cts_waits_total", PEER, by_peer), "{{instance}} waits for {{peer_host}}"),
                (rate("railweave_receives_total", PEER, by_peer), "{{instance}} posts for {{peer_host}}"),
            ],
            "ops",
        ),
        lines(
            "Sent again and failovers",
            "Parts of messages that were sent again, and times that other rails took over, per second. Some after a "
            "cable was pulled are normal; more than that means a path that flaps.",
            [
                (rate("railweave_rail_retransmitted_parts_total", RAIL, BY_RAIL), f"{RAIL_NAME} parts"),
                (rate("railweave_rail_failovers_total", RAIL, BY_RAIL), f"{RAIL_NAME} failovers"),
            ],
            "ops",
        ),
        lines(
            "Writes",
            "Writes of data and of CTS per second. Many CTS writes with little data mean small messages.",
            [
                (rate("railweave_rail_writes_total", RAIL, BY_RAIL), f"{RAIL_NAME} data"),
                (rate("railweave_rail_cts_writes_total", RAIL, BY_RAIL), f"{RAIL_NAME} CTS"),
            ],
            "ops",
        ),
        lines(
            "Reported speed",
            "The speed that the ports of both ends report. A fall means that a link came up again slower than before.",
            [(f"max by ({BY_RAIL}) (railweave_rail_speed_bytes_per_second{{{RAIL}}})", RAIL_NAME)],
            "Bps",
        ),
        lines(
            "Connections by state",
            "Connections in each state. 'setting_up' that stays means that a peer does not answer.",
            [(f"sum by (instance, state) (railweave_connections{{{PEER}}})", "{{instance}} {{state}}")],
            "short",
        ),
        lines(
            "Events by kind",
            "Events of the processes, by kind: rail-down, rail-up, failed and so on. `railweave status --events` has "
            "their words.",
            [
                (
                    f"sum by (instance, kind) (increase(railweave_events_total{{{JOB}}}[$__rate_interval]))",
                    "{{instance}} {{kind}}",
                )
            ],
            "short",
        ),
    ]


def counters(title, description, words, width=12):
    """Returns the rates of counters of ports; `words` has the middle of each metric's name, and its word."""
    queries = [
        (rate(f"railweave_port_{name}_total", PORT, "instance, port"), f"{PORT_NAME} {word}") for name, word in words
    ]
    return lines(title, description, queries, "cps", width)


def ports():
    by_port = "instance, port"
    return [
        lines(
            "Traffic of each port",
            "All bytes that a port received and sent per second, those of other programs included: over RDMA, and over "
            "its network interface. If it is far above what the rails carry, something else uses the port.",
            [
                (rate("railweave_port_data_received_bytes_total", PORT, by_port), f"{PORT_NAME} RDMA received"),
                (rate("railweave_port_data_transmitted_bytes_total", PORT, by_port), f"{PORT_NAME} RDMA sent"),
                (rate("railweave_port_network_receive_bytes_total", PORT, by_port), f"{PORT_NAME} interface received"),
                (rate("railweave_port_network_transmit_bytes_total", PORT, by_port), f"{PORT_NAME} interface sent"),
            ],
            "Bps",
        ),
        lines(
            "Port rate",
            "The link's present speed, divided by the highest that the agent has seen. Below 1 the link trained to "
            "fewer lanes or a lower speed: reseat or replace the cable.",
            [
                (
                    f"max by (instance, port) (railweave_port_rate_bytes_per_second{{{PORT}}}) / "
                    f"max by (instance, port) (railweave_port_largest_rate_bytes_per_second{{{PORT}}})",
                    PORT_NAME,
                )
            ],
            "percentunit",
            most=1.05,
        ),
        timeline(
            "Links of ports",
            "The state of each link. Red while there is no link: cable, module, or the other end.",
            [(f"max by (instance, port) (railweave_port_up{{{PORT}}})", PORT_NAME)],
            [("no link", "red"), ("up", "green")],
        ),
        counters(
            "Congestion: CNP and ECN",
            "Congestion notifications over RoCE. Received packets with an ECN mark, and the notifications sent for "
            "them, mean congestion on the way here; notifications handled mean congestion on the way from here. Some "
            "are how RoCE keeps its rate; thousands per second on one port mean an overloaded path.",
            [
                ("np_ecn_marked_roce_packets_received", "ECN marks received"),
                ("np_cnp_packets_sent", "CNP sent"),
                ("rp_cnp_packets_handled", "CNP handled"),
            ],
        ),
        counters(
            "Pause and waiting",
            "Pause frames with priority that the switch sent to this port, and ticks that the port had data but no "
            "credits. If both grow with the traffic, the switch is congested or a receiver is slow.",
            [("rx_prio_pause", "pause received"), ("transmit_wait", "ticks without credits")],
        ),
        counters(
            "Lost or out of order",
            "Packets that were discarded, arrived out of order, or had to be sent again by the adapter. On a healthy "
            "path these stay at 0; growth means a lossy switch (no PFC or ECN) or a bad cable.",
            [
                ("discards_transmitted", "discarded"),
                ("out_of_sequence_packets_received", "out of sequence"),
                ("packet_sequence_errors", "sequence errors"),
                ("local_ack_timeout_errors", "no acknowledgement"),
            ],
        ),
        counters(
            "Link errors",
            "Times that the link went down, and symbols that could not be read, as the RDMA port and the Ethernet port "
            "below it count them. Growth means a cable, a module or a dirty connector.",
            [
                ("link_downed", "link down"),
                ("symbol_error", "symbol errors"),
                ("link_down_events_phy", "link down (Ethernet)"),
                ("rx_symbol_err_phy", "symbol errors (Ethernet)"),
            ],
            width=24,
        ),
    ]


def steering():
    return [
        timeline(
            "Drained and empty ports",
            "Ports that are to be empty, by reason, and those of them that are: this host sends nothing over them. The "
            "reason is an operator's order, the configuration, or a sick link. A cable may be pulled once its port is "
            "empty at both ends.",
            [
                (f"max by (instance, port, reason) (railweave_port_drained{{{PORT}}})", f"{PORT_NAME} {{{{reason}}}}"),
                (f"max by (instance, port) (railweave_port_empty{{{PORT}}})", f"{PORT_NAME} empty"),
            ],
            [("no", "text"), ("yes", "blue")],
        ),
        lines(
            "Weight of each port",
            "The factor by which the agent reduces a port because of congestion; 1 if it does not. A port that stays "
            "low is on a path that others use too.",
            [(f"min by (instance, port) (railweave_port_weight_ratio{{{PORT}}})", PORT_NAME)],
            "percentunit",
            most=1.05,
        ),
        timeline(
            "Present findings",
            "The present findings of the agents, each with what it is about: a port, a user, a file, or nothing if it "
            "is about the agent. The agent's log and API say it in a sentence.",
            [
                (
                    f"max by (instance, kind, about, severity) (railweave_findings{{{AGENT}}})",
                    "{{instance}} {{kind}} {{about}} ({{severity}})",
                )
            ],
            [("no", "text"), ("present", "orange")],
        ),
        lines(
            "Findings by kind",
            "The number of present findings of each kind, over the chosen hosts. docs/monitoring.md lists the kinds.",
            [(f"sum by (kind) (railweave_findings_by_kind{{{AGENT}}})", "{{kind}}")],
            "short",
        ),
    ]


def agents():
    # The agents that answer, and those that Prometheus should have reached but did not.
    return [
        timeline(
            "Agents that answer",
            "Red while Prometheus gets no answer from an agent. The jobs run on without it; its last policy files hold "
            "for 30 s unless its configuration says otherwise.",
            [(f'max by (instance) (up{{job="railweave-agent", {AGENT}}})', "{{instance}}")],
            [("no answer", "red"), ("up", "green")],
        ),
        lines(
            "Policy files written",
            "Policy files that the agent wrote, and attempts that failed, per second. A file holds for a short time "
            "only, so writing must go on while there is something to order.",
            [
                (rate("railweave_agent_policy_writes_total", AGENT, "instance, user"), "{{instance}} uid {{user}}"),
                (
                    rate("railweave_agent_policy_failures_total", AGENT, "instance, user"),
                    "{{instance}} uid {{user}} failed",
                ),
            ],
            "ops",
        ),
        lines(
            "Length of a look",
            "The time that the last look at all files and counters took. Near the time between two looks, the "
            "agent falls behind.",
            [(f"max by (instance) (railweave_agent_look_seconds{{{AGENT}}})", "{{instance}}")],
            "s",
            width=8,
        ),
        lines(
            "Age of the last look",
            "The time since the agent last looked at files and counters. It should stay near the time between two "
            "looks; if it grows, the agent hangs although it answers.",
            [(f"time() - max by (instance) (railweave_agent_last_look_timestamp_seconds{{{AGENT}}})", "{{instance}}")],
            "s",
            width=8,
        ),
        lines(
            "Users that are steered",
            "1 if this agent writes the user's policy file when anything is ordered. 0 if it only watches, or if "
            "another agent writes it.",
            [(f"max by (instance, user) (railweave_agent_steers{{{AGENT}}})", "{{instance}} uid {{user}}")],
            "short",
            width=8,
        ),
        lines(
            "Files that cannot be used",
            "Telemetry files that cannot be used, by user. Their processes are not watched.",
            [(f"sum by (instance, user) (railweave_agent_unreadable_files{{{AGENT}}})", "{{instance}} uid {{user}}")],
            "short",
        ),
        lines(
            "Series of rails",
            "Series of rails, which the configuration bounds (`series`), and rails that found no room there, and are "
            "summed by user.",
            [
                (f"max by (instance) (railweave_agent_series{{{AGENT}}})", "{{instance}} series"),
                (f"max by (instance) (railweave_agent_series_left_out_total{{{AGENT}}})", "{{instance}} left out"),
            ],
            "short",
        ),
        with_queries(
            stat.Panel(),
            "Versions",
            "The number of agents of each version. Jobs and agents of different versions understand each other; still, "
            "hosts should not stay apart for long.",
            [(f"count by (version) (railweave_agent_info{{{AGENT}}})", "{{version}}")],
        )
        .text_mode(common_models.BigValueTextMode.VALUE_AND_NAME)
        .height(4)
        .span(24),
    ]


def variable(name, label, description, metric):
    """Returns a variable with the values that the label `name`, or the one after the comma of `metric`, has."""
    return (
        build.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(SOURCE)
        .query({"query": f"label_values({metric})", "refId": name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        # Also fits series without the label, such as jobs without an id.
        .all_value(".*")
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )


def variables():
    # A port without a rail has counters, and one that is drained may have neither.
    every_port = '__name__=~"railweave_port_drained|railweave_port_up", instance=~"$instance"'
    source = build.DatasourceVariable("datasource").label("Data source").type("prometheus")
    return [
        source.description("The Prometheus that scrapes the agents."),
        variable("instance", "Host", "The agents, by address.", "railweave_agent_info, instance"),
        variable("job", "Job", "The id of the job.", 'railweave_processes{instance=~"$instance"}, job_id'),
        variable("peer", "Peer", "The other host of a rail.", f"railweave_connections{{{JOB}}}, peer_host"),
        variable("port", "Port", "This end's port.", f"{{{every_port}}}, port"),
    ]


def dashboard():
    made = (
        build.Dashboard("Railweave")
        .uid("railweave")
        .description("The rails, ports and agents of NCCL jobs that use Railweave. Made by dashboard.py.")
        .tags(["railweave", "nccl"])
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .variables(variables())
    )
    parts = [
        ("Overview", overview()),
        ("Rails", rails()),
        ("Ports", ports()),
        ("Steering", steering()),
        ("Agents", agents()),
    ]
    for title, panels in parts:
        made = made.with_row(build.Row(title))
        for panel in panels:
            made = made.with_panel(panel)
    return number_panels(made.build())


def number_panels(made):
    """Numbers the panels, so that links to one of them stay valid."""
    for number_of_panel, panel in enumerate(made.panels, start=1):
        panel.id_val = number_of_panel
    return made


def main():
    text = json.dumps(dashboard(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
