//! The common part of all subcommands that run ranks: the plugin, its rails, and the environment for both.

use crate::environment;
use crate::job::{self, Part};
use crate::library;
use crate::namespaces::Namespaces;
use crate::profiler;
use clap::Args;
use railweave_bench::nccl;
use railweave_bench::ranks::{Ranks, RanksError};
use railweave_discovery::{Found, Note};
use railweave_nccl_host::logger;
use railweave_nccl_host::profiler::Profiler;
use railweave_nccl_host::{LoadedNet, Plugin};
use railweave_options::Options;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The rails if neither the user nor the environment names any: two addresses that every Linux host has.
pub(crate) const DEFAULT_RAILS: &str = "127.0.0.1,127.0.0.2";

/// Arguments about the plugin and its network.
#[derive(Args, Clone, Debug)]
pub(crate) struct NetworkArguments {
    /// The plugin to load, of any maker [default: Railweave's, next to this program or in cargo's target directory]
    #[arg(long, value_name = "PATH")]
    lib: Option<PathBuf>,
    /// NCCL's own library (libnccl.so.2), whose IB transport is then called like a plugin
    #[arg(long, value_name = "PATH", conflicts_with_all = ["lib", "api", "rails", "weights"])]
    nccl: Option<PathBuf>,
    /// The version of the net API to use, 6 to 12 [default: the newest that the plugin exports]
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(u32).range(6..=12))]
    api: Option<u32>,
    /// The rails: addresses, address ranges (CIDR) or names with commas between [default: 127.0.0.1,127.0.0.2 over TCP,
    /// unless RAILWEAVE_FABRIC or RAILWEAVE_RAILS is set]
    #[arg(long, value_name = "LIST")]
    rails: Option<String>,
    /// The weights by which the rails share the traffic, such as 80,20 [default: by the rates that the rails reach]
    #[arg(long, value_name = "LIST")]
    weights: Option<String>,
    /// A command that starts each rank, with {rank} for its number, such as "ip netns exec host{rank}"
    #[arg(long, value_name = "COMMAND")]
    rank_command: Option<String>,
    /// The longest time without any progress, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    stall: u64,
    /// Also shows the plugin's log lines of level INFO, not only those of level WARN
    #[arg(long, short)]
    verbose: bool,
    /// The namespaces in which the ranks run.
    #[arg(skip)]
    inside: Option<Inside>,
    /// True if a rail will fail on purpose.
    #[arg(skip)]
    pulled: bool,
    /// The folder of the ranks' traces, if they are traced.
    #[arg(skip)]
    traces: Option<PathBuf>,
}

/// Two namespaces, in which the ranks run in turn.
#[derive(Clone, Debug)]
struct Inside {
    names: [String; 2],
    /// The ranges of the rails' addresses.
    rails: String,
}

/// Variables that name interfaces of this host, which ranks in namespaces do not have.
const INTERFACES: [&str; 2] = ["NCCL_SOCKET_IFNAME", "RAILWEAVE_OOB_IF"];

/// Variables that choose the rails and their split.
const CHOICES: [&str; 5] =
    ["RAILWEAVE_FABRIC", "RAILWEAVE_RAILS", "RAILWEAVE_MODE", "RAILWEAVE_WEIGHTS", "RAILWEAVE_POLICY"];

/// The origin of the plugin.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Source {
    /// A plugin's file, with the version of the net API to use.
    File(PathBuf, Option<u32>),
    /// NCCL's library, for its own IB transport.
    Nccl(PathBuf),
}

/// The part of every rank's job that describes the plugin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Network {
    source: Source,
    stall_s: u64,
    verbose: bool,
}

/// The plugins of a rank.
pub(crate) struct Started {
    pub(crate) plugin: Plugin,
    pub(crate) net: LoadedNet,
    /// `None` if there is none. It lasts as long as the rank.
    pub(crate) profiler: Option<Profiler>,
}

/// The number of the communicator, the same on all ranks, like a communicator's hash.
const COMM_ID: u64 = 0x7261_696c;

impl NetworkArguments {
    /// Returns the arguments for ranks in these namespaces: even ones in the first, odd ones in the second.
    pub(crate) fn inside(&self, namespaces: &Namespaces) -> Self {
        let inside = Inside { names: namespaces.names().clone(), rails: namespaces.ranges() };
        Self { inside: Some(inside), ..self.clone() }
    }

    /// Returns the arguments for ranks one of whose rails will fail on purpose. Without namespaces, the rails are the
    /// default ones, whatever the environment names.
    pub(crate) fn pulled(&self) -> Self {
        Self { pulled: true, ..self.clone() }
    }

    /// Returns the arguments for ranks that are traced into this folder.
    pub(crate) fn traced(&self, dir: &Path) -> Self {
        Self { traces: Some(dir.to_owned()), ..self.clone() }
    }

    /// Returns true if neither the user nor the environment chooses the rails, their split or the place of the ranks.
    pub(crate) fn is_open(&self) -> bool {
        let given = self.nccl.is_some() || self.rails.is_some() || self.weights.is_some();
        !given && self.rank_command.is_none() && !CHOICES.iter().any(|name| is_set(name))
    }

    /// Returns the part of the ranks' job that describes the plugin. Loads the plugin in this process first, so that a
    /// wrong path is one error and not one per rank. Also examines this host as the plugin does, for the same reason;
    /// `--lib`, `--nccl`, `--rank-command` and namespaces each omit that, because the plugin may then be another one,
    /// or the ranks may see another network.
    pub(crate) fn network(&self) -> Result<Network, Box<dyn Error>> {
        let is_here = self.rank_command.is_none() && self.inside.is_none();
        if self.lib.is_none() && self.nccl.is_none() && is_here {
            let variables = self.variables(is_set).into_iter().map(|(name, value)| (name.into(), value.into()));
            // The plugin warns in its own log lines.
            look(&environment::options_with(variables)?, &|_| ())?;
        }
        let source = match &self.nccl {
            Some(library) => Source::Nccl(library.clone()),
            None => Source::File(library::find(self.lib.as_deref())?, self.api),
        };
        source.load()?;
        Ok(Network { source, stall_s: self.stall, verbose: self.verbose })
    }

    /// Starts the processes of all ranks.
    pub(crate) fn spawn(&self, ranks: usize, part: Part, job: &impl Serialize) -> Result<Ranks, Box<dyn Error>> {
        let program = std::env::current_exe()?;
        let variables = self.variables(is_set);
        let job = serde_json::to_vec(&(part, job))?;
        Ok(Ranks::spawn(ranks, &job, |rank| {
            if let Some(Inside { names, .. }) = &self.inside {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &names[rank % 2]]).arg(&program).arg(job::SUBCOMMAND);
                command.envs(variables.iter().cloned());
                for name in INTERFACES {
                    command.env_remove(name);
                }
                return command;
            }
            let wrapper = self.rank_command.as_deref().unwrap_or_default().replace("{rank}", &rank.to_string());
            let mut words = wrapper.split_whitespace();
            let mut command = match words.next() {
                Some(first) => {
                    let mut command = Command::new(first);
                    command.args(words).arg(&program);
                    command
                }
                None => Command::new(&program),
            };
            command.arg(job::SUBCOMMAND).envs(variables.iter().cloned());
            command
        })?)
    }

    /// Relays between the ranks until all have ended, and passes every report to `on_report`.
    pub(crate) fn supervise(&self, ranks: Ranks, on_report: impl FnMut(usize, &[u8])) -> Result<(), RanksError> {
        // A rank that hangs inside the plugin cannot notice the stall itself. All other ranks notice theirs before this
        // limit.
        ranks.run(Duration::from_secs(2 * self.stall + 60), on_report)
    }

    /// Returns the variables to add to the ranks' environment: those of the user's arguments, and defaults for the
    /// variables that the user's environment does not set. `is_set` returns true for a variable that it sets.
    fn variables(&self, is_set: impl Fn(&str) -> bool) -> Vec<(&'static str, String)> {
        let mut variables = Vec::new();
        if let Some(dir) = &self.traces {
            variables.push(("RAILWEAVE_TRACE", dir.display().to_string()));
        }
        if self.pulled && !is_set("RAILWEAVE_RECOVERY") {
            variables.push(("RAILWEAVE_RECOVERY", "1".to_owned()));
        }
        if self.nccl.is_some() {
            // Its IB transport logs through NCCL's own logger, which is silent without this variable.
            if !is_set("NCCL_DEBUG") {
                variables.push(("NCCL_DEBUG", if self.verbose { "INFO" } else { "WARN" }.to_owned()));
            }
            return variables;
        }
        if let Some(Inside { rails, .. }) = &self.inside {
            variables.extend([("RAILWEAVE_FABRIC", "tcp".to_owned()), ("RAILWEAVE_RAILS", rails.clone())]);
            variables.extend(self.split());
            return variables;
        }
        if self.pulled {
            let rails = DEFAULT_RAILS.to_owned();
            variables.extend([("RAILWEAVE_FABRIC", "tcp".to_owned()), ("RAILWEAVE_RAILS", rails)]);
            variables.extend(self.split());
            return variables;
        }
        let fabric_is_ours = !is_set("RAILWEAVE_FABRIC");
        if fabric_is_ours {
            variables.push(("RAILWEAVE_FABRIC", "tcp".to_owned()));
        }
        match &self.rails {
            Some(rails) => variables.push(("RAILWEAVE_RAILS", rails.clone())),
            None if fabric_is_ours && !is_set("RAILWEAVE_RAILS") => {
                variables.push(("RAILWEAVE_RAILS", DEFAULT_RAILS.to_owned()));
            }
            None => {}
        }
        variables.extend(self.split());
        variables
    }

    /// Returns the variables of `--weights`. The policy is one of them, because another one in the user's environment
    /// would not let the weights count.
    fn split(&self) -> impl Iterator<Item = (&'static str, String)> {
        let weights = self.weights.clone().map(|weights| ("RAILWEAVE_WEIGHTS", weights));
        let policy = weights.is_some().then(|| ("RAILWEAVE_POLICY", "static".to_owned()));
        weights.into_iter().chain(policy)
    }
}

impl Source {
    fn load(&self) -> Result<Plugin, Box<dyn Error>> {
        Ok(match self {
            Self::File(library, api) => Plugin::load(library, *api)?,
            Self::Nccl(library) => nccl::load(library)?,
        })
    }
}

impl Network {
    /// Loads and starts the plugin and the profiler in the process of this rank of `ranks`. The plugin's log lines go
    /// to standard error, each after the rank's number.
    pub(crate) fn start_rank(&self, (rank, ranks): (usize, usize)) -> Result<Started, Box<dyn Error>> {
        let most = if self.verbose { logger::INFO } else { logger::WARN };
        logger::set_sink(move |line| {
            if line.level <= most {
                // One write per line, so that the lines of two ranks do not mix. If it fails, only this line is lost.
                let text = format!("rank {rank}: {}\n", line.text.trim_end());
                let _ = std::io::stderr().write_all(text.as_bytes());
            }
        });
        let plugin = self.source.load()?;
        let loaded = profiler::load(plugin.path());
        let net = plugin.init_with(COMM_ID, None, loaded.as_ref())?;
        let profiler = loaded.and_then(|loaded| profiler::start(&loaded, COMM_ID, (rank, ranks)));
        Ok(Started { plugin, net, profiler })
    }

    /// Returns the longest time without any progress.
    pub(crate) fn stall(&self) -> Duration {
        Duration::from_secs(self.stall_s)
    }
}

/// Examines this host as the plugin does for net API v9 and later. `warn` gets the plugin's warnings.
///
/// # Errors
/// If the plugin's `init` would fail: the reason.
pub(crate) fn look(options: &Options, warn: &dyn Fn(&str)) -> Result<Found, railweave_discovery::Error> {
    railweave_discovery::find(options, true, &|note| match note {
        Note::Warning(text) => warn(&text),
        Note::Information(_) => {}
    })
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        network: NetworkArguments,
    }

    fn variables(arguments: &[&str], set: &[&str]) -> Vec<(&'static str, String)> {
        let line = Line::parse_from([&["test"], arguments].concat());
        line.network.variables(|name| set.contains(&name))
    }

    #[test]
    fn defaults_fill_only_the_variables_that_the_user_left_open() {
        let tcp = ("RAILWEAVE_FABRIC", "tcp".to_owned());
        let rails = |list: &str| ("RAILWEAVE_RAILS", list.to_owned());
        assert_eq!(variables(&[], &[]), [tcp.clone(), rails("127.0.0.1,127.0.0.2")]);
        assert_eq!(variables(&[], &["RAILWEAVE_RAILS"]), std::slice::from_ref(&tcp));
        assert_eq!(variables(&[], &["RAILWEAVE_FABRIC"]), []);
        let weights = ("RAILWEAVE_WEIGHTS", "80,20".to_owned());
        let given = variables(&["--rails", "::1, eth0,10.0.0.0/8", "--weights", "80,20"], &["RAILWEAVE_RAILS"]);
        let policy = ("RAILWEAVE_POLICY", "static".to_owned());
        assert_eq!(given, [tcp, rails("::1, eth0,10.0.0.0/8"), weights, policy]);
        let level = |level: &str| ("NCCL_DEBUG", level.to_owned());
        assert_eq!(variables(&["--nccl", "x"], &[]), [level("WARN")]);
        assert_eq!(variables(&["--nccl", "x", "--verbose"], &[]), [level("INFO")]);
        assert_eq!(variables(&["--nccl", "x", "--verbose"], &["NCCL_DEBUG"]), []);
    }

    #[test]
    fn a_rail_that_will_fail_is_one_of_the_default_ones_and_recovers_unless_the_user_forbids_it() {
        let line = Line::parse_from(["test"]);
        let variables = |set: &[&str]| line.network.pulled().variables(|name| set.contains(&name));
        let [tcp, rails] = [("RAILWEAVE_FABRIC", "tcp"), ("RAILWEAVE_RAILS", "127.0.0.1,127.0.0.2")];
        let owned = |(name, value): (&'static str, &str)| (name, value.to_owned());
        assert_eq!(variables(&["RAILWEAVE_RAILS"]), [("RAILWEAVE_RECOVERY", "1"), tcp, rails].map(owned));
        assert_eq!(variables(&["RAILWEAVE_RECOVERY"]), [tcp, rails].map(owned));
    }
}
