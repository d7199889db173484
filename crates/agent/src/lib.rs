//! The decisions of the agent of a host: telemetry, counters and time in; policies, findings and metrics out.
//!
//! An [`Agent`] sees the files of jobs and the counters of ports, look by look, and is then asked for the rules of each
//! user's policy file, for its [`State`] and for [`metrics`](Agent::metrics). It makes no system call, reads no clock
//! and owns no thread, so tests play weeks with it. `railweave agent` does the work around it.
#![forbid(unsafe_code)]

mod agent;
mod arena;
mod balance;
mod config;
mod congestion;
mod drain;
mod find;
mod findings;
mod keeper;
mod metrics;
mod names;
mod operator;
mod orders;
mod ports;
mod process;
mod rules;
mod script;
mod series;
mod sick;
mod standing;
mod time;
mod user;
mod view;
mod weights;
mod world;

pub use agent::Agent;
pub use config::{BalanceConfig, Config, CongestionConfig, DEFAULT_LISTEN, ScriptConfig, SickConfig, is_name};
pub use drain::{DrainChange, Phase, Reason};
pub use findings::{Finding, KINDS, Severity};
pub use keeper::{Keeper, Keeping};
pub use operator::{LONGEST_RULE, OperatorRule, key as matchers_key};
pub use orders::{OperatorOrder, UserRules};
pub use rules::{Inherited, Origin, Writer, origin, writer, written_s};
pub use script::LONGEST_ANSWER;
pub use standing::Standing;
pub use time::Now;
pub use user::Steers;
pub use view::{
    AgentView, DrainView, FindingView, GroupView, JobView, PortView, ProcessView, RailView, ReasonView, RunDirView,
    State, UserView,
};
