//! A terminal of our own, with `top` on it.

use super::host::Started;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Opens the other side of a terminal.
pub(crate) fn side_of(terminal: &File) -> File {
    grantpt(terminal).unwrap();
    unlockpt(terminal).unwrap();
    let name = ptsname(terminal, Vec::new()).unwrap();
    let name = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())).to_owned();
    // It controls nobody.
    let flags = rustix::fs::OFlags::NOCTTY.bits().cast_signed();
    let side = OpenOptions::new().read(true).write(true).custom_flags(flags).open(name).unwrap();
    tcsetwinsize(&side, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    side
}

/// A terminal of our own, with `top` on it.
pub(crate) struct Screen {
    pub(crate) terminal: File,
    /// The terminal's other side, as it was before.
    pub(crate) side: File,
    pub(crate) child: Started,
    /// The terminal as its user sees it.
    pub(crate) seen: Arc<Mutex<vt100::Parser>>,
}

impl Screen {
    pub(crate) fn new(command: &mut Command, columns: u16, rows: u16) -> Self {
        let terminal = File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap());
        let side = side_of(&terminal);
        let seen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let (mut reader, theirs) = (terminal.try_clone().unwrap(), Arc::clone(&seen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                theirs.lock().unwrap().process(&bytes[..count]);
            }
        });
        let screen = |stream: &File| Stdio::from(stream.try_clone().unwrap());
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&side, size).unwrap();
        command.stdin(screen(&side)).stdout(screen(&side)).stderr(screen(&side));
        let child = Started(command.spawn().unwrap());
        Self { terminal, side, child, seen }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn resize(&mut self, columns: u16, rows: u16) {
        self.seen.lock().unwrap().screen_mut().set_size(rows, columns);
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.side, size).unwrap();
    }

    pub(crate) fn text(&self) -> String {
        self.seen.lock().unwrap().screen().contents()
    }

    /// Returns the processor time that `top` has used: fields 14 and 15 of proc_pid_stat(5), in hundredths of a second
    /// on every architecture that matters here.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.0.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks: u64 = [fields[11], fields[12]].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_millis(10 * ticks)
    }

    pub(crate) fn until(&self, words: &str) {
        let has = || self.seen.lock().unwrap().screen().contents().contains(words);
        railweave_patience::until(&format!("{words} on the screen"), || has().then_some(()));
    }

    pub(crate) fn has_colours(&self) -> bool {
        let seen = self.seen.lock().unwrap();
        let (rows, columns) = seen.screen().size();
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let mut cells = cells.filter_map(|(row, column)| seen.screen().cell(row, column));
        cells.any(|cell| [cell.fgcolor(), cell.bgcolor()] != [vt100::Color::Default; 2])
    }

    /// Returns true if the terminal shows its other screen.
    pub(crate) fn is_taken(&self) -> bool {
        self.seen.lock().unwrap().screen().alternate_screen()
    }

    pub(crate) fn hides_cursor(&self) -> bool {
        self.seen.lock().unwrap().screen().hide_cursor()
    }

    pub(crate) fn marks_pasted_texts(&self) -> bool {
        self.seen.lock().unwrap().screen().bracketed_paste()
    }

    pub(crate) fn ends(&mut self) -> Option<i32> {
        let child = &mut self.child.0;
        railweave_patience::until("the end of top", || child.try_wait().unwrap()).code()
    }

    pub(crate) fn is_given_back(&self) {
        railweave_patience::until("the terminal's first screen", || (!self.is_taken()).then_some(()));
        railweave_patience::until("the cursor", || (!self.hides_cursor()).then_some(()));
        assert!(!self.is_raw() && !self.marks_pasted_texts());
    }

    pub(crate) fn is_raw(&self) -> bool {
        use rustix::termios::LocalModes;
        !tcgetattr(&self.side).unwrap().local_modes.contains(LocalModes::ICANON)
    }
}
