//! `libtidefs.so` as a program in C finds it: built, installed with its headers, and linked by pkg-config.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::common::modes::in_both_modes;
use super::common::program::{self, Finished};
use super::common::{Mode, Mount};

/// Longest time for the build of the library where nobody built it before.
const BUILD: Duration = Duration::from_secs(200);
/// Longest time for a compiler or a program of a test.
const PROGRAM: Duration = Duration::from_secs(60);

fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The library, installed in a folder of its own.
pub(crate) struct Installed {
    prefix: TempDir,
}

impl Installed {
    /// Builds and installs it.
    pub(crate) fn new() -> Self {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked", "--package", "tidefs-client-c"]).current_dir(checkout());
        program::run(&mut cargo, BUILD).success("cargo build --package tidefs-client-c");
        let library = Path::new(env!("CARGO_BIN_EXE_tidefsd")).with_file_name("libtidefs.so");
        let prefix = tempfile::tempdir().expect("a temporary directory");
        let mut install = Command::new(checkout().join("mount-tools/client-c/install.sh"));
        program::run(install.arg(library).arg(prefix.path()), PROGRAM).success("install.sh");
        Self { prefix }
    }

    fn pkg_config(&self, what: &str) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", self.prefix.path().join("lib/pkgconfig")).args([what, "tidefs"]);
        let finished = program::run(&mut command, PROGRAM).success("pkg-config");
        finished.output.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a program with all warnings as errors.
    pub(crate) fn compile(&self, compiler: &str, options: &[&str], source: &Path) -> PathBuf {
        let program = self.prefix.path().join(source.file_stem().expect("a name"));
        let mut command = Command::new(compiler);
        command.args(options).args(["-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
        command.args(self.pkg_config("--cflags")).arg(source).args(self.pkg_config("--libs"));
        program::run(command.arg("-o").arg(&program), PROGRAM).success(compiler);
        program
    }

    /// Runs a program that was compiled.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, program: &Path, arguments: &[S]) -> Finished {
        self.run_with(program, arguments, None, &[])
    }

    /// The same, with a folder of further libraries and variables of its environment.
    pub(crate) fn run_with<S: AsRef<OsStr>>(
        &self,
        program: &Path,
        arguments: &[S],
        libraries: Option<&Path>,
        environment: &[(&str, &str)],
    ) -> Finished {
        let own = self.prefix.path().join("lib");
        let folders = std::env::join_paths(std::iter::once(own.as_path()).chain(libraries));
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", folders.expect("no colon in a temporary directory")).args(arguments);
        program::run(command.envs(environment.iter().copied()), PROGRAM)
    }
}

fn the_example_stores_and_finds_blocks(mode: Mode) {
    let mount = Mount::start(&mode.options(&[]));
    let place = mount.namespace("model");
    let library = Installed::new();
    let source = checkout().join("mount-tools/client-c/examples/roundtrip.c");
    let program = library.compile("cc", &["-std=c11"], &source);
    let finished = library.run(&program, &[&place]).success("roundtrip");
    let is_fast = mode == Mode::Passthrough && !mount.is_bare();
    let (way, how) = if is_fast { ("fast path", "in place") } else { ("by file", "a copy") };
    let expected = format!(
        "libtidefs {}, {way}\n4 of 5 blocks are cached\nblock-0: 1048576 bytes of 'a', {how}\nblock-1: 1048576 bytes of \
         'b', {how}\nblock-2: 1048576 bytes of 'c', {how}\nblock-3: 1048576 bytes of 'd', {how}\nblock-4: a miss\n",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(finished.output, expected);
    assert_eq!(std::fs::read(place.join("block-3")).expect("by file"), [b'd'; 1 << 20]);
}

in_both_modes!(the_example_stores_and_finds_blocks);

/// With an ldconfig that notes what it is asked, in the place of the system's.
#[test]
fn the_system_knows_what_is_installed_where_it_looks_and_else_one_is_told_what_to_type() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| place.path().canonicalize().expect("a directory").join(name);
    fs::create_dir(at("programs")).expect("a directory");
    let ldconfig = "case \"$*\" in -vNX) echo \"$SEARCHED: (from a test)\" ;; *) echo \"ran $*\" ;; esac";
    fs::write(at("programs/ldconfig"), format!("#!/bin/sh\n{ldconfig}\n")).expect("a script");
    fs::set_permissions(at("programs/ldconfig"), fs::Permissions::from_mode(0o755)).expect("it is ours");
    fs::write(at("libtidefs.so"), "").expect("a file");
    let path = format!("{}:{}", at("programs").display(), std::env::var("PATH").unwrap_or_default());
    let install = |prefix: &str| {
        let mut command = Command::new(checkout().join("mount-tools/client-c/install.sh"));
        command.args([at("libtidefs.so"), at(prefix)]).env("PATH", &path).env("SEARCHED", at("searched/lib"));
        program::run(&mut command, PROGRAM).success("install.sh").output
    };
    assert_eq!(install("searched"), "ran \n");
    let told = install("elsewhere");
    let file = format!("echo {} | sudo tee /etc/ld.so.conf.d/", at("elsewhere/lib").display());
    assert!(told.contains(&file) && !told.contains("ran"), "{told}");
}

#[test]
fn null_is_refused_everywhere_and_says_where() {
    let library = Installed::new();
    let source = checkout().join("tests/clients/conformance/null.c");
    let program = library.compile("cc", &["-std=c11", "-pthread"], &source);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let finished = library.run(&program, &[directory.path()]).success("null");
    assert_eq!(finished.output, "ok\n");
}

/// A cache that nobody closed has a thread that runs in it.
#[test]
fn the_library_stays_loaded_when_a_plug_in_gives_it_back() {
    let library = Installed::new();
    let source = checkout().join("tests/clients/conformance/unload.c");
    // Not linked with it: it is loaded by name.
    let program = library.compile("cc", &["-std=c11", "-Wl,--as-needed"], &source);
    let nothing: [&str; 0] = [];
    assert_eq!(library.run(&program, &nothing).success("unload").output, "stays\n");
}

#[test]
fn the_headers_serve_c_plus_plus_and_the_structures_have_their_layout() {
    let library = Installed::new();
    let source = checkout().join("tests/clients/conformance/layout.c");
    library.compile("cc", &["-std=c11", "-pedantic"], &source);
    if program::run(Command::new("sh").args(["-c", "command -v c++"]), PROGRAM).status.success() {
        library.compile("c++", &["-std=c++17", "-x", "c++"], &source);
    }
    let mount = Mount::start(&[]);
    if !mount.is_bare() {
        let program = library.compile("cc", &["-std=c11"], &source);
        let finished = library.run(&program, &[mount.join(".tidefs/control")]).success("layout");
        assert_eq!(finished.output, "version 1, 3 features\n");
    }
}
