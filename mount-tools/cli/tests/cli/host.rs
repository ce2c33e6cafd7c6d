//! A host of its own for each test: a state directory, a directory to mount on, and the program.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;
use tidefs_control_api::instance::{Instance, STATE_DIR_VARIABLE, StateDir};

/// Where the commands of one test run.
#[derive(Debug)]
pub(crate) struct Host {
    folder: TempDir,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// The one JSON document on stdout.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().expect("the program was not killed"),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Host {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("mnt")).unwrap();
        std::fs::create_dir(folder.path().join("bin")).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap()
    }

    pub(crate) fn mount_dir(&self) -> PathBuf {
        self.path().join("mnt")
    }

    pub(crate) fn state(&self) -> StateDir {
        StateDir::new(self.path().join("state"))
    }

    pub(crate) fn instance(&self) -> Instance {
        self.state().instance(&self.mount_dir())
    }

    /// `tidefs` with the words of `line`; `MNT` stands for the mount point.
    pub(crate) fn run(&self, line: &str) -> Ended {
        self.run_program(Path::new(env!("CARGO_BIN_EXE_tidefs")), line)
    }

    pub(crate) fn run_program(&self, program: &Path, line: &str) -> Ended {
        let mount_dir = self.mount_dir();
        let words = line.split(' ').map(|word| word.replace("MNT", mount_dir.to_str().unwrap()));
        let output = Command::new(program)
            .args(words)
            .current_dir(self.path())
            .env(STATE_DIR_VARIABLE, self.state().path())
            .env("FAKE_LOCK", self.instance().lock())
            .env("FAKE_NOTES", self.path().join("notes"))
            .output();
        output.unwrap().into()
    }

    /// Puts `name`, which is the program, and a script `tidefsd` into one folder. Returns the program's path.
    ///
    /// The script first notes its arguments, folder and session in the file `notes`.
    pub(crate) fn install(&self, name: &str, script: &str) -> PathBuf {
        let bin = self.path().join("bin");
        let daemon = bin.join("tidefsd");
        let notes = "echo \"args: $*\" >>\"$FAKE_NOTES\"\n\
                     echo \"cwd: $(pwd)\" >>\"$FAKE_NOTES\"\n\
                     test \"$(cut -d' ' -f6 /proc/$$/stat)\" = $$ && echo 'leads its session' >>\"$FAKE_NOTES\"\n";
        // Traps before all that takes time: who sends the signal does not wait for them.
        let (traps, rest): (Vec<_>, Vec<_>) =
            script.lines().partition(|line| line.trim().starts_with("trap "));
        let (traps, rest) = (traps.join("\n"), rest.join("\n"));
        std::fs::write(&daemon, format!("#!/bin/sh\n{traps}\n{notes}{rest}\n")).unwrap();
        std::fs::set_permissions(&daemon, std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = bin.join(name);
        // A copy and not a link to it: tidefsd is sought beside the program itself.
        std::fs::copy(env!("CARGO_BIN_EXE_tidefs"), &program).unwrap();
        program
    }

    pub(crate) fn notes(&self) -> String {
        std::fs::read_to_string(self.path().join("notes")).unwrap_or_default()
    }
}
