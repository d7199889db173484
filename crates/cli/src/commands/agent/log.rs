//! The lines of the agent on standard error.

use railweave_agent::Severity;

/// Says a sentence.
pub(super) fn say(text: &str) {
    eprintln!("railweave agent: {text}");
}

/// Says a sentence of some urgency.
pub(super) fn say_as(severity: Severity, text: &str) {
    match severity {
        Severity::Info => say(text),
        Severity::Warning | Severity::Critical => say(&format!("{}: {text}", severity.word())),
    }
}
