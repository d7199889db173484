//! The metrics, in the text format of OpenMetrics: docs/agent.md lists them.

use crate::agent::Agent;
use crate::congestion::Congestion;
use crate::drain::{Phase, Reason};
use crate::findings::KINDS;
use crate::names::counted_name;
use crate::process::Life;
use crate::series::{Series, SeriesKey};
use crate::world::OTHER;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use railweave_counters::Counter;
use railweave_telemetry::{BUCKETS, ConnectionState, Direction, RailState};
use std::collections::BTreeMap;
use std::fmt;

/// Labels with their values.
type Labels = Vec<(&'static str, String)>;

/// A metric with all its samples.
#[derive(Debug)]
struct Family {
    name: String,
    help: &'static str,
    kind: MetricType,
    samples: Vec<(Labels, Value)>,
}

#[derive(Clone, Debug)]
enum Value {
    Number(f64),
    Count(u64),
    Histogram([u64; BUCKETS]),
}

/// All metrics at one moment.
#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for family in &self.0 {
            let mut metric = encoder.encode_descriptor(&family.name, family.help, None, family.kind)?;
            for (labels, value) in &family.samples {
                Sample { value, kind: family.kind }.encode(metric.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

struct Sample<'a> {
    value: &'a Value,
    kind: MetricType,
}

impl EncodeMetric for Sample<'_> {
    fn encode(&self, mut encoder: MetricEncoder) -> Result<(), fmt::Error> {
        match (self.value, self.kind) {
            (Value::Count(count), MetricType::Counter) => encoder.encode_counter::<Labels, u64, u64>(count, None),
            (Value::Number(number), MetricType::Counter) => encoder.encode_counter::<Labels, f64, f64>(number, None),
            (Value::Count(count), _) => encoder.encode_gauge(&(*count as f64)),
            (Value::Number(number), _) => encoder.encode_gauge(number),
            (Value::Histogram(counts), _) => {
                let bounds = (0..BUCKETS).map(|bucket| match bucket {
                    15 => f64::INFINITY,
                    bucket => (2_u64 << bucket) as f64 / 1e6,
                });
                // Files that lie must not overflow the sum of all.
                let counts = counts.map(|count| count.min(u64::MAX / BUCKETS as u64));
                let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
                // The middle of each bucket: the sum itself is not known.
                let middle = |bucket: usize| (if bucket == 0 { 1.0 } else { 1.5 * (1_u64 << bucket) as f64 }) / 1e6;
                let sum = counts.iter().enumerate().map(|(bucket, count)| middle(bucket) * *count as f64).sum();
                encoder.encode_histogram::<Labels>(sum, counts.iter().sum(), &buckets, None)
            }
        }
    }

    fn metric_type(&self) -> MetricType {
        self.kind
    }
}

/// Collects the samples of families, in the order of the calls.
#[derive(Default)]
struct Collected(Vec<Family>);

impl Collected {
    fn family(
        &mut self,
        name: impl Into<String>,
        help: &'static str,
        kind: MetricType,
        samples: impl IntoIterator<Item = (Labels, Value)>,
    ) {
        self.0.push(Family { name: name.into(), help, kind, samples: samples.into_iter().collect() });
    }

    fn counters(
        &mut self,
        name: impl Into<String>,
        help: &'static str,
        samples: impl IntoIterator<Item = (Labels, u64)>,
    ) {
        let samples = samples.into_iter().map(|(labels, count)| (labels, Value::Count(count)));
        self.family(name, help, MetricType::Counter, samples);
    }

    fn gauges(
        &mut self,
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Labels, Option<f64>)>,
    ) {
        let known = samples.into_iter().filter_map(|(labels, value)| Some((labels, Value::Number(value?))));
        self.family(name, help, MetricType::Gauge, known);
    }
}

impl Agent {
    /// Returns the metrics in the text format of OpenMetrics 1.0.
    pub fn metrics(&self) -> String {
        let mut all = Collected::default();
        self.rail_metrics(&mut all);
        self.connection_metrics(&mut all);
        self.port_metrics(&mut all);
        self.own_metrics(&mut all);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Families(all.0)));
        let mut text = String::new();
        // Writing into a text does not fail.
        encode(&mut text, &registry).unwrap_or_default();
        text
    }

    fn rail_metrics(&self, all: &mut Collected) {
        let series = || self.world.series.iter().map(|(key, series)| (labels(key), series));
        let counts = |place: usize| series().map(move |(labels, series)| (labels, series.counters[place]));
        all.counters("railweave_rail_sent_bytes", "Data bytes sent.", counts(0));
        all.counters("railweave_rail_received_bytes", "Data bytes received.", counts(1));
        all.counters("railweave_rail_writes", "Writes of data.", counts(2));
        all.counters("railweave_rail_cts_writes", "Writes of CTS.", counts(3));
        all.counters("railweave_rail_retransmitted_parts", "Parts of messages that were sent again.", counts(4));
        all.counters("railweave_rail_failovers", "Times that other rails took over from this one.", counts(5));
        let gauge = |value: fn(&Series) -> Option<f64>| series().map(move |(labels, series)| (labels, value(series)));
        all.gauges(
            "railweave_rail_in_flight_bytes",
            "Bytes that were posted and have not completed.",
            gauge(|series| Some(series.in_flight as f64)),
        );
        all.gauges(
            "railweave_rail_speed_bytes_per_second",
            "The speed that the ports of both ends report.",
            gauge(|series| series.speed_mbps.map(|mbps| f64::from(mbps) * 125_000.0)),
        );
        let shared = self.shared();
        let rails = || shared.values().flat_map(|shared| &shared.rails);
        all.gauges(
            "railweave_rail_share_ratio",
            "The part of its connections' data that is sent over it now.",
            rails().map(|(key, _, share, _)| (labels(key), *share)),
        );
        all.gauges(
            "railweave_rail_expected_share_ratio",
            "The part that its reported speed would give it among the rails that are up.",
            rails().map(|(key, _, _, expected)| (labels(key), *expected)),
        );
        all.family(
            "railweave_rail_write_latency_seconds",
            "Latencies of sampled writes.",
            MetricType::Histogram,
            series().map(|(labels, series)| (labels, Value::Histogram(series.latencies))),
        );
        let states = series().flat_map(|(labels, series)| {
            RailState::ALL
                .iter()
                .map(move |state| {
                    (with(&labels, "state", &state.word().replace(' ', "_")), Some(f64::from(series.in_state(*state))))
                })
                .collect::<Vec<_>>()
        });
        all.gauges("railweave_rails", "Rails by state.", states);
    }

    fn connection_metrics(&self, all: &mut Collected) {
        let groups = || {
            self.world.groups.iter().map(|(key, group)| {
                let labels = vec![
                    ("user", key.user.to_string()),
                    ("job_id", key.job.clone()),
                    ("peer_host", key.peer_host.clone()),
                    ("device", key.device.clone()),
                ];
                (labels, group)
            })
        };
        let states = groups().flat_map(|(labels, group)| {
            let mut samples = Vec::new();
            for direction in Direction::ALL {
                for state in ConnectionState::ALL {
                    let count = group.states[*direction as usize][*state as usize];
                    // One that never had any is left out: most are never anything but open.
                    if count > 0 || (*state == ConnectionState::Open && *direction != Direction::Unknown) {
                        let labels = with(&labels, "direction", direction.word());
                        let state = state.word().replace(' ', "_");
                        samples.push((with(&labels, "state", &state), Some(f64::from(count))));
                    }
                }
            }
            samples
        });
        all.gauges("railweave_connections", "Connections by direction and state.", states);
        all.counters(
            "railweave_receives",
            "Receives that were posted.",
            groups().map(|(labels, group)| (labels, group.messages)),
        );
        all.counters(
            "railweave_cts_waits",
            "Messages that the application had ready before their CTS came.",
            groups().map(|(labels, group)| (labels, group.waited_for_cts)),
        );
        let mut processes: BTreeMap<(u32, &str), [u32; Life::ALL.len()]> = BTreeMap::new();
        for ((user, _), process) in &self.world.processes {
            let mut job = (*user, process.facts.job.as_str());
            if processes.len() >= self.config.series && !processes.contains_key(&job) {
                job.1 = OTHER;
            }
            processes.entry(job).or_default()[process.life as usize] += 1;
        }
        let processes = processes.into_iter().flat_map(|((user, job), counts)| {
            Life::ALL.map(|life| {
                let labels =
                    vec![("user", user.to_string()), ("job_id", job.to_owned()), ("presence", life.word().to_owned())];
                (labels, Some(f64::from(counts[life as usize])))
            })
        });
        all.gauges("railweave_processes", "Processes by their presence.", processes);
        let events = self.world.events.iter().map(|((user, job, kind), count)| {
            (vec![("user", user.to_string()), ("job_id", job.clone()), ("kind", kind.clone())], *count)
        });
        all.counters("railweave_events", "Events of processes (docs/telemetry.md).", events);
    }

    fn port_metrics(&self, all: &mut Collected) {
        for counter in Counter::ALL {
            let scale = counter.unit().scale();
            let name = format!("railweave_port_{}", counter.name().trim_start_matches("port_"));
            let samples = self.counters.iter().filter_map(|(port, counters)| {
                let value = counters.reading.as_ref()?.value(*counter)?;
                let value = if scale == 1.0 { Value::Count(value) } else { Value::Number(value as f64 * scale) };
                Some((port_label(port), value))
            });
            all.family(name, counter.help(), MetricType::Counter, samples);
        }
        let readings = || self.counters.iter().filter_map(|(port, counters)| Some((port, counters.reading.as_ref()?)));
        let rates = readings().map(|(port, reading)| (port_label(port), reading.rate.map(|rate| rate as f64)));
        all.gauges("railweave_port_rate_bytes_per_second", "The present rate of the port's link.", rates);
        all.gauges(
            "railweave_port_largest_rate_bytes_per_second",
            "The largest rate of the port's link that the agent has seen.",
            self.counters.iter().map(|(port, it)| (port_label(port), it.largest_rate.map(|rate| rate as f64))),
        );
        let ups = readings().map(|(port, reading)| (port_label(port), reading.is_up.map(|up| f64::from(u8::from(up)))));
        all.gauges("railweave_port_up", "1 if the port's link is up.", ups);
        let used = || self.port_names().into_iter();
        let reasons = used().flat_map(|port| {
            [Reason::Operator, Reason::Configuration, Reason::Sick].map(|reason| {
                let holds = self.is_drained(port, reason);
                (with(&port_label(port), "reason", reason.word()), Some(f64::from(u8::from(holds))))
            })
        });
        all.gauges("railweave_port_drained", "1 if the port is to be empty, by reason.", reasons);
        let empty = used().map(|port| {
            let is_empty = self.drain_of(port).is_some_and(|drain| drain.phase == Phase::Empty);
            (port_label(port), Some(f64::from(u8::from(is_empty))))
        });
        all.gauges("railweave_port_empty", "1 if a port that is to be empty is.", empty);
        let weights = used().map(|port| {
            let factor = self.congestion.get(&counted_name(port)).map_or(1.0, Congestion::factor);
            (port_label(port), Some(factor))
        });
        all.gauges("railweave_port_weight_ratio", "The part of its share that avoid-congestion leaves it.", weights);
    }

    fn own_metrics(&self, all: &mut Collected) {
        let findings = self.findings.iter().map(|(finding, _)| {
            let labels = vec![
                ("kind", finding.kind.to_owned()),
                ("about", finding.about.clone()),
                ("severity", finding.severity.word().to_owned()),
            ];
            (labels, Some(1.0))
        });
        all.gauges("railweave_findings", "1 for each present finding.", findings);
        let mut kinds = [0_u32; KINDS.len()];
        for (finding, _) in self.findings.iter() {
            for (count, (kind, _)) in kinds.iter_mut().zip(KINDS) {
                *count += u32::from(kind == finding.kind);
            }
        }
        let kinds = KINDS.iter().zip(kinds);
        all.gauges(
            "railweave_findings_by_kind",
            "Present findings by kind.",
            kinds.map(|((kind, _), count)| (vec![("kind", (*kind).to_owned())], Some(f64::from(count)))),
        );
        let info = vec![("version", self.version.clone())];
        all.gauges("railweave_agent_info", "1, with the version of the agent.", [(info, Some(1.0))]);
        let users = || self.users.iter().map(|(number, user)| (vec![("user", number.to_string())], user));
        all.counters(
            "railweave_agent_policy_writes",
            "Policy files that were written.",
            users().map(|(labels, user)| (labels, user.writes)),
        );
        all.counters(
            "railweave_agent_policy_failures",
            "Policy files that could not be written.",
            users().map(|(labels, user)| (labels, user.failures)),
        );
        all.gauges(
            "railweave_agent_steers",
            "1 if this agent writes the user's policy file when anything is ordered.",
            users().map(|(labels, user)| (labels, Some(f64::from(u8::from(user.is_steered()))))),
        );
        all.gauges(
            "railweave_agent_unreadable_files",
            "Files of the user that cannot be used.",
            users().map(|(labels, user)| (labels, Some(user.refused.len() as f64))),
        );
        let none = Vec::new;
        all.gauges(
            "railweave_agent_look_seconds",
            "The time that the last look took.",
            [(none(), Some(self.look_took.as_secs_f64()))],
        );
        all.gauges(
            "railweave_agent_last_look_timestamp_seconds",
            "The time of the last look, since 1970.",
            [(none(), Some(self.now.clock.as_secs_f64()))],
        );
        all.gauges(
            "railweave_agent_series",
            "Series of rails; the configuration bounds them.",
            [(none(), Some(self.world.series.len() as f64))],
        );
        all.counters(
            "railweave_agent_series_left_out",
            "Rails that were counted under another name, because there was no series left.",
            [(none(), self.world.left_out)],
        );
    }
}

fn labels(key: &SeriesKey) -> Labels {
    vec![
        ("user", key.group.user.to_string()),
        ("job_id", key.group.job.clone()),
        ("peer_host", key.group.peer_host.clone()),
        ("device", key.group.device.clone()),
        ("rail", key.rail.to_string()),
        ("port", key.port.clone()),
    ]
}

fn port_label(port: &str) -> Labels {
    vec![("port", port.to_owned())]
}

fn with(labels: &Labels, name: &'static str, value: &str) -> Labels {
    let mut labels = labels.clone();
    labels.push((name, value.to_owned()));
    labels
}
