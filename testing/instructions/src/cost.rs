//! The cost of a message.

use crate::profile::{Place, Profile};
use crate::work::Work;
use serde::Serialize;
use std::path::Path;

/// The objects, programs and libraries, that a profile distinguishes; all others are libraries that the transport may
/// call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Objects<'a> {
    /// The transport: a plugin, or NCCL's library.
    pub(crate) transport: &'a Path,
    /// The fake libibverbs.
    pub(crate) fake: &'a Path,
    /// The program that drives the transport.
    pub(crate) program: &'a Path,
}

/// The cost of one message at both ends together.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Cost {
    /// Instructions of the transport itself.
    pub(crate) own: f64,
    /// Instructions of the libraries that it calls, mainly libc, without the fake libibverbs.
    pub(crate) libraries: f64,
    /// Calls of `ibv_post_send`.
    pub(crate) send_posts: f64,
    /// Calls of `ibv_post_recv` and `ibv_post_srq_recv`.
    pub(crate) receive_posts: f64,
    /// Calls of `ibv_poll_cq`.
    pub(crate) polls: f64,
    /// The work of each rail's device, which the bench reports; a profile does not have it.
    pub(crate) devices: Vec<Work>,
    /// The transport's functions, the most costly first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) functions: Vec<Function>,
}

/// One function of the transport.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Function {
    /// Its name.
    pub(crate) name: String,
    /// Its own instructions for one message.
    pub(crate) own: f64,
}

impl Cost {
    /// Returns the cost of one message, from the profile of `messages` messages.
    ///
    /// # Errors
    /// A sentence, if the profile lacks instructions or calls that every message needs.
    pub(crate) fn of(profile: &Profile, messages: u32, objects: Objects<'_>) -> Result<Self, String> {
        let each = |count: u64| count as f64 / f64::from(messages);
        let is = |object: &str, path: &Path| Path::new(object) == path;
        let own = profile.functions().filter(|(place, _)| is(&place.object, objects.transport));
        let function = |(place, own): (&Place, u64)| Function { name: place.function.clone(), own: each(own) };
        let mut functions: Vec<Function> = own.map(function).collect();
        functions.sort_by(|one, other| other.own.total_cmp(&one.own));
        let mut cost = Self { own: functions.iter().map(|function| function.own).sum(), functions, ..Self::default() };
        for (_, place, calls) in profile.calls().filter(|(caller, ..)| is(caller, objects.transport)) {
            if is(&place.object, objects.fake) {
                // The fake libibverbs names its functions as libibverbs does, inside its modules.
                match place.function.rsplit("::").next().unwrap_or_default() {
                    "post_send" => cost.send_posts += each(calls.count),
                    "post_recv" | "post_srq_recv" => cost.receive_posts += each(calls.count),
                    "poll_cq" => cost.polls += each(calls.count),
                    // Other calls are not part of a message.
                    _ => {}
                }
            } else if !is(&place.object, objects.program) {
                cost.libraries += each(calls.instructions);
            }
        }
        let needed =
            [("instruction", cost.own), ("call of post_send", cost.send_posts), ("call of poll_cq", cost.polls)];
        match needed.iter().find(|(_, each)| *each == 0.0) {
            None => Ok(cost),
            Some((what, _)) => Err(format!(
                "{messages} messages took not one {what} of {}, which is impossible; do the functions of the fake \
                 libibverbs have other names than in testing/instructions/src/cost.rs?",
                objects.transport.display()
            )),
        }
    }

    /// Returns the instructions of the transport and of the libraries that it calls.
    pub(crate) fn instructions(&self) -> f64 {
        self.own + self.libraries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 messages.
    const PROFILE: &str = "\
events: Ir
ob=/bin/railweave
fn=railweave_message_loop
1 900
cob=/lib/plugin.so
cfn=plugin::isend
calls=100 1
1 199000

ob=/lib/plugin.so
fn=plugin::isend
1 5000
cob=/lib/fake.so
cfn=fake::pairs::post_send
calls=200 1
1 90000
cob=/lib/fake.so
cfn=fake::receives::post_srq_recv
calls=25 1
1 500
cob=/lib/libc.so.6
cfn=memcpy
calls=100 1
1 2000
cob=/bin/railweave
cfn=log
calls=100 1
1 700
fn=plugin::test
2 7000
cob=/lib/fake.so
cfn=fake::completions::poll_cq
calls=300 1
1 4000

ob=/lib/fake.so
fn=fake::pairs::post_send
1 10000
cob=/lib/libc.so.6
cfn=memcpy
calls=200 1
1 80000

totals: 22900
";

    fn cost(transport: &str, text: &str) -> Result<Cost, String> {
        let objects = Objects {
            transport: Path::new(transport),
            fake: Path::new("/lib/fake.so"),
            program: Path::new("/bin/railweave"),
        };
        Cost::of(&Profile::read(text).unwrap(), 100, objects)
    }

    #[test]
    fn a_message_costs_what_the_transport_runs_and_calls_but_for_the_fake_and_the_program() {
        let cost = cost("/lib/plugin.so", PROFILE).unwrap();
        assert_eq!((cost.own, cost.libraries, cost.instructions()), (120.0, 20.0, 140.0));
        assert_eq!((cost.send_posts, cost.receive_posts, cost.polls), (2.0, 0.25, 3.0));
        let function = |name: &str, own| Function { name: name.to_owned(), own };
        assert_eq!(cost.functions, [function("plugin::test", 70.0), function("plugin::isend", 50.0)]);
    }

    #[test]
    fn a_transport_that_did_not_do_what_every_message_needs_has_no_cost() {
        let error = cost("/lib/other.so", PROFILE).unwrap_err();
        assert!(error.contains("100 messages took not one instruction of /lib/other.so"), "{error}");
        let error = cost("/lib/plugin.so", &PROFILE.replace("post_send", "send")).unwrap_err();
        assert!(error.contains("not one call of post_send"), "{error}");
        assert!(cost("/lib/plugin.so", &PROFILE.replace("poll_cq", "poll")).is_err());
    }
}
