//! Stories of connections over the simulated fabric, one in each test.

/// Makes tests of stories that hold on both fabrics: each becomes a module with a test over each.
macro_rules! on_both_fabrics {
    ($($story:ident),+ $(,)?) => {$(
        mod $story {
            #[test]
            fn one_sided() {
                super::$story::<true>();
            }

            #[test]
            fn two_sided() {
                super::$story::<false>();
            }
        }
    )+};
}

mod back_again;
mod breaches;
mod debts;
mod empty;
mod handshake;
mod hidden;
mod misuse;
mod pair;
mod probes;
mod promises;
mod rails_back;
mod records;
mod recovery;
mod refusals;
mod regressions;
mod room;
mod silence;
mod steering;
mod watched;
mod writes;
