//! Callgrind's profile of a thread: instructions by function, and calls ("Callgrind Format Specification" in valgrind's
//! manual).

use std::collections::{BTreeMap, HashMap};

/// The content of a profile.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    /// The instructions that each function ran itself.
    own: BTreeMap<Place, u64>,
    /// Calls from one object into another, by the object that calls and the function that is called.
    calls: BTreeMap<(String, Place), Calls>,
}

/// A function in an object, which is a program or a shared library.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The object's path.
    pub(crate) object: String,
    /// The function, demangled.
    pub(crate) function: String,
}

/// Calls of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    /// Their number.
    pub(crate) count: u64,
    /// The instructions that ran in these calls, with everything that the function called.
    pub(crate) instructions: u64,
}

impl Profile {
    /// Reads the text of callgrind's file.
    ///
    /// # Errors
    /// A sentence, if the text is not such a file or is cut short, or if nothing was counted.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mut reader = Reader::default();
        for (index, line) in text.lines().enumerate() {
            reader.line(line).map_err(|what| {
                format!("line {} of callgrind's profile, \"{}\", {what}", index + 1, line.escape_debug())
            })?;
        }
        let counted: u64 = reader.profile.own.values().sum();
        match reader.totals {
            Some(0) => Err("callgrind counted no instruction; was the right function named?".to_owned()),
            Some(totals) if totals == counted => Ok(reader.profile),
            Some(totals) => {
                Err(format!("callgrind's total is {totals} instructions, but its lines add up to {counted}"))
            }
            None => Err("the profile has no totals; it was cut short, so count again".to_owned()),
        }
    }

    /// Returns every function with the instructions that it ran itself.
    pub(crate) fn functions(&self) -> impl Iterator<Item = (&Place, u64)> {
        self.own.iter().map(|(place, instructions)| (place, *instructions))
    }

    /// Returns all calls from one object into another: the calling object, the called function, and the calls.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (&str, &Place, Calls)> {
        self.calls.iter().map(|((caller, place), calls)| (caller.as_str(), place, *calls))
    }
}

/// The state of reading.
#[derive(Debug, Default)]
struct Reader {
    profile: Profile,
    totals: Option<u64>,
    objects: Names,
    functions: Names,
    /// The function, with its object, to which the costs of the next lines belong.
    object: String,
    function: String,
    /// The object and the function of the next call; the object is the caller's if it is `None`.
    callee_object: Option<String>,
    callee_function: String,
    /// The number of calls to which the next line's cost belongs; `None` if it is a function's own.
    calls: Option<u64>,
}

impl Reader {
    /// Reads one line. Fails with its defect, in words that continue a sentence about the line.
    fn line(&mut self, line: &str) -> Result<(), &'static str> {
        if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            return self.cost(line);
        }
        if let Some((key, value)) = line.split_once('=') {
            match key {
                "ob" => self.object = self.objects.resolve(value)?,
                "fn" => self.function = self.functions.resolve(value)?,
                "cob" => self.callee_object = Some(self.objects.resolve(value)?),
                "cfn" => self.callee_function = self.functions.resolve(value)?,
                "calls" => self.calls = Some(number(value.split(' ').next())?),
                // Files and jumps, and values of the header that contain "=".
                _ => {}
            }
            return Ok(());
        }
        match line.split_once(": ") {
            Some(("positions", kinds)) if kinds != "line" => {
                Err("names other positions than lines, and only lines are read")
            }
            Some(("events", events)) if events != "Ir" => Err("names other events than Ir, and only Ir is read"),
            Some(("totals", totals)) => {
                self.totals = Some(number(Some(totals))?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Reads a position and its cost.
    fn cost(&mut self, line: &str) -> Result<(), &'static str> {
        let cost = match line.split(' ').nth(1) {
            // The format omits trailing zeros.
            None => 0,
            word => number(word)?,
        };
        let Some(count) = self.calls.take() else {
            let place = Place { object: self.object.clone(), function: self.function.clone() };
            *self.profile.own.entry(place).or_default() += cost;
            return Ok(());
        };
        let object = self.callee_object.take().unwrap_or_else(|| self.object.clone());
        if object != self.object {
            let place = Place { object, function: self.callee_function.clone() };
            let calls = self.profile.calls.entry((self.object.clone(), place)).or_default();
            calls.count += count;
            calls.instructions += cost;
        }
        Ok(())
    }
}

/// Names by their numbers: "(3) name" gives a name the number 3, "(3)" means that name from then on.
#[derive(Debug, Default)]
struct Names(HashMap<u64, String>);

impl Names {
    fn resolve(&mut self, value: &str) -> Result<String, &'static str> {
        let Some((id, name)) = value.strip_prefix('(').and_then(|rest| rest.split_once(')')) else {
            return Ok(value.to_owned());
        };
        // "(below main)" is a name that begins like a number.
        let Ok(id) = id.parse() else { return Ok(value.to_owned()) };
        if let Some(name) = name.strip_prefix(' ') {
            self.0.insert(id, name.to_owned());
        }
        self.0.get(&id).cloned().ok_or("means a name that was not given")
    }
}

fn number(word: Option<&str>) -> Result<u64, &'static str> {
    word.and_then(|word| word.trim().parse().ok()).ok_or("has no number where one belongs")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
# callgrind format
version: 1
cmd:  railweave bench --toggle=1
desc: Trigger: Program termination

positions: line
events: Ir
summary: 133

ob=(7) /bin/railweave-instructions
fl=(1) loop.rs
fn=(2) railweave_message_loop
10 20
cob=(8) /lib/plugin.so
cfi=(3) send.rs
cfn=(4) plugin::isend
calls=5 +3
* 100
+1 3
cfn=(9) (below main)
calls=1 0
-2 7

fn=(9)
5 7

ob=(8)
fl=(3)
fn=(4)
1 40
fi=(1)
2 10
2
cob=(6) /lib/libc.so.6
cfi=(5) ???
cfn=(5) memcpy
calls=4 0
3 30
cob=(6)
cfi=(5)
cfn=(5)
calls=1 0
3 20
cfn=(11) plugin::helper'2
calls=1 0
3 3

fn=(11)
9 3

ob=(6)
fl=(5)
fn=(5)
0 50

totals: 133
";

    fn place(object: &str, function: &str) -> Place {
        Place { object: object.to_owned(), function: function.to_owned() }
    }

    #[test]
    fn own_costs_are_summed_by_function_and_calls_by_the_object_that_calls() {
        let profile = Profile::read(SAMPLE).unwrap();
        let functions: Vec<_> = profile.functions().map(|(place, own)| (place.clone(), own)).collect();
        let expected = [
            (place("/bin/railweave-instructions", "(below main)"), 7),
            (place("/bin/railweave-instructions", "railweave_message_loop"), 23),
            (place("/lib/libc.so.6", "memcpy"), 50),
            (place("/lib/plugin.so", "plugin::helper'2"), 3),
            (place("/lib/plugin.so", "plugin::isend"), 50),
        ];
        assert_eq!(functions, expected);
        let calls: Vec<_> =
            profile.calls().map(|(caller, place, calls)| (caller, place.function.as_str(), calls)).collect();
        let expected = [
            ("/bin/railweave-instructions", "plugin::isend", Calls { count: 5, instructions: 100 }),
            ("/lib/plugin.so", "memcpy", Calls { count: 5, instructions: 50 }),
        ];
        assert_eq!(calls, expected);
    }

    #[test]
    fn a_text_that_is_cut_short_or_no_profile_is_refused() {
        let error = |from: &str, to: &str| {
            let text = SAMPLE.replacen(from, to, 1);
            assert_ne!(text, SAMPLE, "{from}");
            Profile::read(&text).unwrap_err()
        };
        assert!(error("\ntotals: 133\n", "").contains("was cut short"));
        assert!(error("totals: 133", "totals: 134").contains("total is 134 instructions, but its lines add up to 133"));
        assert!(error("totals: 133", "totals: 0").contains("counted no instruction"));
        assert!(error("totals: 133", "totals: x").contains("no number"));
        assert!(error("positions: line", "positions: instr line").contains("other positions than lines"));
        assert!(error("events: Ir", "events: Ir Dr").contains("other events than Ir"));
        assert!(error("calls=5 +3", "calls=").contains("line 17 of callgrind's profile, \"calls=\", has no number"));
        assert!(error("10 20", "10 x").contains("no number"));
        assert!(error("cob=(6) /lib/libc.so.6", "cob=(6)").contains("a name that was not given"));
        assert!(Profile::read("").unwrap_err().contains("no totals"));
    }
}
