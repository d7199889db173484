//! The completions of shells.

use crate::host::said;
use std::process::{Command, Output};

fn completions(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_railweave")).arg("completions").args(words).output().unwrap()
}

#[test]
fn each_shell_completes_what_people_use_and_nothing_else() {
    for shell in ["bash", "zsh", "fish", "elvish"] {
        let text = said(&completions(&[shell]), 0);
        for words in ["policy", "drain", "dry-run", "completions"] {
            assert!(text.contains(words), "{shell}: {words}");
        }
        // Those that the program starts itself.
        let whole = said(&Command::new(env!("CARGO_BIN_EXE_railweave")).arg("--help").output().unwrap(), 0);
        assert!(!whole.contains("remove-namespaces"));
        for words in ["remove-namespaces", "remove_namespaces", "RemoveNamespaces", "owner"] {
            assert!(!text.contains(words), "{shell}: {words}");
        }
    }
    for words in [&[][..], &["powershell"]] {
        said(&completions(words), 2);
    }
}

#[test]
fn bash_understands_its_completions() {
    let text = said(&completions(&["bash"]), 0);
    let status = Command::new("bash").args(["-n", "-c", &text]).status();
    match status {
        Ok(status) => assert!(status.success()),
        Err(error) => eprintln!("skipped: no bash: {error}"),
    }
}
