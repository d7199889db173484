//! Rates and times, as people read them.

/// Returns a rate.
pub(crate) fn rate(mbps: f64) -> String {
    if mbps >= 1000.0 { format!("{:.1} Gbit/s", mbps / 1000.0) } else { format!("{mbps:.1} Mbit/s") }
}

/// Returns a time of microseconds.
pub(crate) fn duration(microseconds: f64) -> String {
    if microseconds >= 1000.0 { format!("{:.1} ms", microseconds / 1000.0) } else { format!("{microseconds:.0} µs") }
}

/// Returns an age.
pub(crate) fn ago(seconds: f64) -> String {
    match seconds {
        ..60.0 => format!("{seconds:.0} s"),
        ..3600.0 => format!("{:.0} min", seconds / 60.0),
        ..86_400.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} days", seconds / 86_400.0),
    }
}
