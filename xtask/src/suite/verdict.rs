//! The meaning of a test program's output: the tests that ended and how, and whether the failed ones may be repeated.
//!
//! The output is libtest's ("pretty", its default): a line `test NAME ... ok` or `test NAME ... FAILED` for each test
//! that ended, then each failed test's output under `---- NAME stdout ----`, then the names of the failed tests.

use super::watch::Said;
use railweave_patience::ran_out;

/// The decision about a program that failed.
#[derive(Debug, PartialEq)]
pub(crate) enum Decision {
    /// It failed, for this reason.
    Fails(&'static str),
    /// These tests ran out of time, and nothing else was wrong.
    Repeat(Vec<String>),
}

/// The most tests of one program that one slow moment can hit.
const MOST_REPEATED: usize = 5;

/// The status of a test program with failed tests; programs that end otherwise have other statuses, or a signal.
const TESTS_FAILED: i32 = 101;

/// Decides about a program that ended with this status, `None` for a signal, and this output.
pub(crate) fn decide(said: &Said, status: Option<i32>) -> Decision {
    if status != Some(TESTS_FAILED) {
        return Decision::Fails("the program did not end as libtest does");
    }
    let failed = failed(&said.out);
    if failed.is_empty() {
        return Decision::Fails("it does not say which tests failed");
    }
    let is_late = |name: &&str| section(&said.out, name, &failed).is_some_and(ran_out);
    if !failed.iter().all(is_late) {
        return Decision::Fails("not everything that failed ran out of time");
    }
    if said.err.contains(" panicked at ") && !ran_out(&said.err) {
        return Decision::Fails("a thread panicked for another reason");
    }
    if failed.len() > MOST_REPEATED {
        return Decision::Fails("too many tests ran out of time for it to be chance");
    }
    Decision::Repeat(failed.into_iter().map(str::to_owned).collect())
}

/// Returns true if the output of a run of one test reports that it ran and passed.
pub(crate) fn is_one_passed(out: &str) -> bool {
    out.lines().any(|line| line.starts_with("test result: ok. 1 passed; 0 failed"))
}

/// Returns the tests that have ended.
pub(crate) fn ended(out: &str) -> Vec<&str> {
    let lines = head(out).lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
    let ended = lines.filter(|(_, result)| ["ok", "FAILED", "ignored"].iter().any(|word| result.starts_with(word)));
    ended.map(|(name, _)| name.trim_end_matches(" - should panic")).collect()
}

/// Returns the tests that were reported as slow.
pub(crate) fn slow(out: &str) -> Vec<&str> {
    let lines = out.lines().filter_map(|line| line.strip_prefix("test "));
    lines.filter_map(|line| Some(line.split_once(" has been running for over ")?.0)).collect()
}

/// Returns the output before that of failed tests.
fn head(out: &str) -> &str {
    out.split_once("\nfailures:\n").map_or(out, |(head, _)| head)
}

/// Returns the names of the failed tests, from the last list, because a test's own output may look like one.
fn failed(out: &str) -> Vec<&str> {
    let Some((_, list)) = out.rsplit_once("\nfailures:\n") else { return Vec::new() };
    list.lines().map_while(|line| line.strip_prefix("    ")).filter(|name| !name.is_empty()).collect()
}

/// Returns a failed test's output; `failed` are the names of all failed tests.
fn section<'a>(out: &'a str, name: &str, failed: &[&str]) -> Option<&'a str> {
    let (_, rest) = out.split_once(&format!("\n---- {name} stdout ----\n"))?;
    let (rest, _) = rest.rsplit_once("\nfailures:\n")?;
    let ends = failed.iter().filter_map(|other| rest.find(&format!("\n---- {other} stdout ----\n")));
    Some(&rest[..ends.min().unwrap_or(rest.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panicked(message: &str) -> String {
        format!("\nthread 'x' (41) panicked at tests/a.rs:7:9:\n{message}\nnote: run with `RUST_BACKTRACE=1`\n")
    }

    /// Returns the output of a program in which these tests failed with these outputs.
    fn output(failed: &[(&str, String)]) -> Said {
        let mut out = "\nrunning 9 tests\ntest good ... ok\ntest left ... ignored, too long\n".to_owned();
        failed.iter().for_each(|(name, _)| out += &format!("test {name} ... FAILED\n"));
        out += "\nfailures:\n\n";
        failed.iter().for_each(|(name, said)| out += &format!("---- {name} stdout ----\n{said}\n\n"));
        out += "\nfailures:\n";
        failed.iter().for_each(|(name, _)| out += &format!("    {name}\n"));
        out +=
            "\ntest result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n";
        Said { out, err: String::new() }
    }

    fn late(what: &str) -> String {
        panicked(&railweave_patience::sentence(what, railweave_patience::LIMIT))
    }

    fn repeated(names: &[&str]) -> Decision {
        Decision::Repeat(names.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn only_tests_that_ran_out_of_time_are_repeated() {
        let one = output(&[("a::b", late("connect"))]);
        assert_eq!(decide(&one, Some(101)), repeated(&["a::b"]));
        let two = output(&[("a", late("connect")), ("b", late("accept"))]);
        assert_eq!(decide(&two, Some(101)), repeated(&["a", "b"]));
        for other in [
            "assertion failed: byte 7",
            "not freed: after 60 s it is not true that memory is freed",
            "index out of bounds",
            "",
        ] {
            let mixed = output(&[("a", late("connect")), ("b", panicked(other))]);
            assert!(matches!(decide(&mixed, Some(101)), Decision::Fails(_)), "{other}");
            let mixed = output(&[("a", panicked(other)), ("b", late("connect"))]);
            assert!(matches!(decide(&mixed, Some(101)), Decision::Fails(_)), "{other}");
            let both = output(&[("a", late("connect") + &panicked(other))]);
            assert!(matches!(decide(&both, Some(101)), Decision::Fails(_)), "{other}");
        }
    }

    #[test]
    fn signals_statuses_and_panics_elsewhere_are_no_matter_of_time() {
        let mut one = output(&[("a", late("connect"))]);
        for status in [None, Some(1), Some(134), Some(0)] {
            assert!(matches!(decide(&one, status), Decision::Fails(_)), "{status:?}");
        }
        one.err = panicked("of a thread that libtest does not know");
        assert!(matches!(decide(&one, Some(101)), Decision::Fails(_)));
        one.err = "WARN slow\n".to_owned();
        assert_eq!(decide(&one, Some(101)), repeated(&["a"]));
        assert!(matches!(decide(&Said::default(), Some(101)), Decision::Fails(_)));
        // A test that failed without output.
        let mut silent = output(&[("a", late("connect"))]);
        silent.out = silent.out.replace("---- a stdout ----", "");
        assert!(matches!(decide(&silent, Some(101)), Decision::Fails(_)));
    }

    #[test]
    fn many_at_once_are_no_chance() {
        let names = ["a", "b", "c", "d", "e", "f"];
        let all: Vec<_> = names.iter().map(|name| (*name, late("connect"))).collect();
        assert_eq!(decide(&output(&all[..5]), Some(101)), repeated(&names[..5]));
        assert!(matches!(decide(&output(&all), Some(101)), Decision::Fails(_)));
    }

    #[test]
    fn the_output_of_a_program_inside_a_tests_own_is_part_of_that() {
        // A scenario runs the test's own program once more; its output is in the panic of the test that watches it.
        let inner = format!(
            "running 1 test\ntest a ... {}FAILED\n\nfailures:\n\nfailures:\n    a\n\n\
             test result: FAILED. 0 passed; 1 failed\n",
            late("accept")
        );
        let outer = panicked(&format!("ran out of time: a, case 0: exit status: 101; it said:\n{inner}"));
        let said = output(&[("a", outer.clone()), ("b", late("connect"))]);
        assert_eq!(decide(&said, Some(101)), repeated(&["a", "b"]));
        assert_eq!(ended(&said.out), ["good", "left", "a", "b"]);
        let wrong = outer.replace("FAILED\n\nfailures", &format!("{}FAILED\n\nfailures", panicked("wrong bytes")));
        assert!(matches!(decide(&output(&[("a", wrong)]), Some(101)), Decision::Fails(_)));
    }

    #[test]
    fn tests_that_ended_and_that_take_long_are_found() {
        let out = "running 4 tests\ntest a ... ok\ntest b - should panic ... ok\n\
                   test c has been running for over 60 seconds\ntest d ... ";
        assert_eq!(ended(out), ["a", "b"]);
        assert_eq!(slow(out), ["c"]);
        assert!(is_one_passed("test result: ok. 1 passed; 0 failed; 0 ignored"));
        assert!(
            !is_one_passed("test result: ok. 0 passed; 0 failed")
                && !is_one_passed("test result: ok. 11 passed; 0 failed")
        );
    }
}
