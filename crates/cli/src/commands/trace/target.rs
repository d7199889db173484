//! The file that is made. It gets its name once it is whole, so that a full disk leaves no half of it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Stdout, Write};
use std::path::{Path, PathBuf};

/// The bytes that are written at once.
const CHUNK: usize = 1 << 20;

/// A file in the making.
pub(super) enum Target {
    Stdout(BufWriter<Stdout>),
    /// A device or a pipe, which no file can take the place of.
    Special(BufWriter<File>),
    /// A file under another name: it is removed unless it gets its own.
    Named {
        file: BufWriter<File>,
        unfinished: PathBuf,
        path: PathBuf,
        is_finished: bool,
    },
}

impl Target {
    /// Begins the file of this name; "-" is standard output.
    pub(super) fn new(path: &Path) -> Result<Self, String> {
        if path == Path::new("-") {
            return Ok(Self::Stdout(BufWriter::with_capacity(CHUNK, io::stdout())));
        }
        let said = |error: io::Error| {
            let shown = crate::output::printable(&path.display().to_string());
            format!("\"{shown}\" cannot be made: {error}; name a file in a folder that this user may write")
        };
        // A link stays, and the file that it leads to is replaced.
        let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let found = fs::metadata(path).ok();
        if found.is_some_and(|found| !found.is_file()) {
            let file = OpenOptions::new().write(true).open(path).map_err(said)?;
            return Ok(Self::Special(BufWriter::with_capacity(CHUNK, file)));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let unfinished = path.with_file_name(format!(".{name}.{}", std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).open(&unfinished).map_err(said)?;
        let file = BufWriter::with_capacity(CHUNK, file);
        Ok(Self::Named { file, unfinished, path: path.clone(), is_finished: false })
    }

    /// Writes the rest, and gives the file its name.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        if let Self::Named { unfinished, path, is_finished, .. } = &mut self {
            fs::rename(unfinished, path)?;
            *is_finished = true;
        }
        Ok(())
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Stdout(out) => out,
            Self::Special(file) | Self::Named { file, .. } => file,
        }
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer().flush()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Self::Named { unfinished, is_finished: false, .. } = self {
            let _ = fs::remove_file(unfinished);
        }
    }
}
