//! All hosts, asked in all ways.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::answer::Answer;
use crate::ask::Question;
use crate::file::{read, write};
use crate::fixture::{Fixture, line};
use crate::sysfs;

/// The modes of Railweave in which it makes devices of several ports itself.
pub(crate) const MODES: [&str; 3] = ["fused", "adapters", "mesh"];

/// The variable that chooses the mode.
const MODE: &str = "RAILWEAVE_MODE";

/// The answers of one side, by the names of hosts and the lines of settings.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct Answers(pub(crate) BTreeMap<String, BTreeMap<String, Answer>>);

/// The answers of both sides.
#[derive(Debug)]
pub(crate) struct Sides {
    /// NCCL's own transport.
    pub(crate) nccl: Answers,
    /// Railweave's plugin.
    pub(crate) railweave: Answers,
}

impl Answers {
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        serde_json::from_str(&read(path)?)
            .map_err(|error| format!("{}: {error}; run: cargo xtask view --fetch", path.display()))
    }

    pub(crate) fn write(&self, path: &Path) -> Result<(), String> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        write(path, &(text + "\n"))
    }

    /// Returns the answer about a host with a setting.
    pub(crate) fn get(&self, host: &str, settings: &str) -> Result<&Answer, String> {
        self.0
            .get(host)
            .and_then(|answers| answers.get(settings))
            .ok_or_else(|| format!("nothing is known about {host} with {settings}; run: cargo xtask view --fetch"))
    }
}

/// Asks NCCL's own transport.
pub(crate) fn nccl(fixtures: &[Fixture], library: &Path, folder: &Path) -> Result<Answers, String> {
    ask(fixtures, ("--nccl", library), folder, Fixture::settings)
}

/// Asks Railweave's plugin.
pub(crate) fn railweave(fixtures: &[Fixture], library: &Path, folder: &Path) -> Result<Answers, String> {
    ask(fixtures, ("--plugin", library), folder, |fixture| {
        let modes = MODES.iter().map(|mode| vec![(MODE.to_owned(), (*mode).to_owned())]);
        fixture.settings().into_iter().chain(modes).collect()
    })
}

fn ask(
    fixtures: &[Fixture],
    side: (&'static str, &Path),
    folder: &Path,
    settings: impl Fn(&Fixture) -> Vec<Vec<(String, String)>>,
) -> Result<Answers, String> {
    let verbs = railweave_fake_ibverbs::link(&[]).map_err(|error| error.to_string())?;
    fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let mlx5 = mlx5_folder(&verbs, folder)?;
    let mut all = BTreeMap::new();
    for fixture in fixtures {
        let (sys, machine) = (folder.join(&fixture.name), folder.join(format!("{}-machine", fixture.name)));
        sysfs::make(fixture, &sys)?;
        write(&machine, &fixture.machine)?;
        let mut answers = BTreeMap::new();
        for settings in settings(fixture) {
            let mut arguments = Vec::new();
            if !settings.iter().any(|(name, _)| name == MODE) {
                arguments.push("--fuse-adapters".to_owned());
                arguments.extend(fixture.force_merge.iter().map(|names| format!("--fuse={}", names.join(","))));
            }
            let question = Question {
                side,
                sys: &sys,
                verbs: (&verbs, machine.clone()),
                mlx5: &mlx5,
                settings: &settings,
                arguments,
            };
            let answer = question.ask().map_err(|error| format!("{}, {}: {error}", fixture.name, side.0))?;
            answers.insert(line(&settings), answer);
        }
        all.insert(fixture.name.clone(), answers);
    }
    Ok(Answers(all))
}

/// Makes the folder in which the dynamic linker finds the fake library in libmlx5's place, whatever this machine has.
fn mlx5_folder(verbs: &Path, folder: &Path) -> Result<PathBuf, String> {
    let libraries = folder.join("libraries");
    let make = || {
        fs::create_dir_all(&libraries)?;
        for name in ["libmlx5.so", "libmlx5.so.1"] {
            let link = libraries.join(name);
            if fs::read_link(&link).ok().as_deref() != Some(verbs) {
                let _ = fs::remove_file(&link); // it may not be there
                symlink(verbs, &link)?;
            }
        }
        std::io::Result::Ok(())
    };
    make().map_err(|error| format!("cannot make {}: {error}", libraries.display()))?;
    Ok(libraries)
}
