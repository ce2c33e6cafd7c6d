//! One table of cases, `conformance/cases.txt`, run through the client library in Rust, C and Python: on a
//! mount with the fast path, on one without, and on another filesystem.
//!
//! Each driver prints the table with the results that it got; it must be the table.

mod driver;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::c_library::Installed;
use super::common::{Mode, Mount};
use super::python_package::Package;

/// Where the cases run: on a mount, or in a temporary directory.
struct Ground {
    _mount: Option<Mount>,
    _directory: Option<tempfile::TempDir>,
    /// Whether there is a fast path.
    is_fast: bool,
    /// The directory of the cases, each of which has one of its own in it.
    place: PathBuf,
}

impl Ground {
    fn new(mode: Option<Mode>) -> Self {
        match mode {
            Some(mode) => {
                let mount = Mount::start(&mode.options(&[]));
                let place = mount.namespace("cases");
                let is_fast = mode == Mode::Passthrough && !mount.is_bare();
                Self { _mount: Some(mount), _directory: None, is_fast, place }
            }
            None => {
                let directory = tempfile::tempdir().expect("a temporary directory");
                let place = directory.path().to_owned();
                Self { _mount: None, _directory: Some(directory), is_fast: false, place }
            }
        }
    }
}

fn table_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/conformance/cases.txt")
}

/// The table without what is only said to people, with the sums of patterns in place of `@SEED:LENGTH`, and the result that
/// fits in place of two.
fn expected(table: &str, is_fast: bool) -> String {
    let mut text = String::new();
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (operation, results) = line.split_once(" = ").unwrap_or((line, ""));
        let (fast, slow) = results.split_once(" or ").unwrap_or((results, results));
        let results = if is_fast { fast } else { slow };
        text += operation;
        for (index, result) in results.split(' ').enumerate().filter(|(_, result)| !result.is_empty()) {
            text += if index == 0 { " = " } else { " " };
            let (before, sum) = result.split_once('@').unwrap_or((result, ""));
            text += before;
            if let Some((seed, length)) = sum.split_once(':') {
                let (seed, length) = (seed.parse().expect("a seed"), length.parse().expect("a length"));
                let _ = write!(text, "{}", driver::sum(&driver::pattern(seed, length)));
            }
        }
        text.push('\n');
    }
    text
}

/// Runs all cases by a driver, which gets the directory of the cases and the table. Empty output: it said why it was skipped.
fn conform(mode: Option<Mode>, drive: impl FnOnce(&Path, &Path) -> String) {
    let ground = Ground::new(mode);
    let table = fs::read_to_string(table_path()).expect("the table");
    let cases: Vec<&str> = table.lines().filter_map(|line| line.strip_prefix("case ")).collect();
    for case in &cases {
        fs::create_dir(ground.place.join(case)).expect("a directory for the case");
    }
    let found = drive(&ground.place, &table_path());
    if found.is_empty() {
        return;
    }
    let expected = expected(&table, ground.is_fast);
    let differs = expected.lines().zip(found.lines()).find(|(expected, found)| expected != found);
    assert!(found == expected, "{differs:?} of\n{found}");
    assert!(cases.len() >= 10, "the table is whole");
}

fn by_c(root: &Path, table: &Path) -> String {
    let library = Installed::new();
    let program = library.compile("cc", &["-std=gnu11"], &table.with_file_name("driver.c"));
    library.run(&program, &[root, table]).success("the driver in C").output
}

fn by_python(root: &Path, table: &Path) -> String {
    let Some(package) = Package::installed() else { return String::new() };
    let driver = table.with_file_name("driver.py");
    package.run(&driver, &[root, table], true).success("the driver in Python").output
}

/// The tests of one language: `drive` gets the directory of the cases and the table.
macro_rules! conforms {
    ($language:ident, $drive:path) => {
        mod $language {
            use super::super::common::{Mode, kernel};

            #[test]
            fn with_the_fast_path() {
                if !kernel::has_fast_path() {
                    return;
                }
                super::conform(Some(Mode::Passthrough), $drive);
            }

            #[test]
            fn without_it() {
                super::conform(Some(Mode::Direct), $drive);
            }

            #[test]
            fn on_another_filesystem() {
                super::conform(None, $drive);
            }
        }
    };
}

conforms!(rust, super::driver::run);
conforms!(c, super::by_c);
conforms!(python, super::by_python);
