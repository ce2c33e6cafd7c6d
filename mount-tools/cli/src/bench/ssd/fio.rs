//! fio, the yardstick of disks, with buffers of huge pages.
//!
//! With base pages a request of some MiB falls into hundreds of segments and fio is slower than the disk, so huge pages
//! are taken for it while the bench runs (`vm.nr_hugepages`), and given back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use tidefs_engine::types::ByteCount;

use crate::bench::cleanup::Change;
use crate::bench::error::Error;

const NR_HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";
const HUGE_PAGE: ByteCount = ByteCount::mib(2);
/// Pages beyond the buffers: fio takes one more to align them.
const SPARE_PAGES: u64 = 4;

/// What fio does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Writes one block after the other.
    Write,
    /// Reads blocks in random order, each once.
    RandomRead,
}

/// What fio reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reached {
    /// 10^9 bytes a second.
    pub(super) rate: f64,
    /// Microseconds of the median request.
    pub(super) latency_us: f64,
}

/// A file for fio on the disk that is measured, and huge pages for its buffers.
///
/// The file is as long as the tier, and each sample lies behind the one before it, as in a log: what a disk wrote a
/// moment ago is faster than the rest of it.
#[derive(Debug)]
pub(super) struct Fio {
    file: PathBuf,
    samples: u64,
    sample: ByteCount,
    _pages: HugePages,
}

#[derive(Debug, Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Debug, Deserialize)]
struct Job {
    read: Side,
    write: Side,
}

#[derive(Debug, Deserialize)]
struct Side {
    bw_bytes: f64,
    clat_ns: Latency,
}

#[derive(Debug, Default, Deserialize)]
struct Latency {
    #[serde(default)]
    percentile: std::collections::BTreeMap<String, f64>,
}

impl Fio {
    /// Takes huge pages for `buffers` bytes and writes a file of `samples` samples in `directory`.
    ///
    /// # Errors
    /// Without fio, and without memory for the pages.
    pub(super) fn new(
        directory: &Path,
        sample: ByteCount,
        samples: u64,
        buffers: ByteCount,
    ) -> Result<Self, Error> {
        let version = Command::new("fio").arg("--version").output();
        if let Err(source) = version {
            return Err(Error::System { action: "run fio: install the package fio".to_owned(), source });
        }
        let pages = HugePages::reserve(buffers.get().div_ceil(HUGE_PAGE.get()) + SPARE_PAGES)?;
        let fio = Self { file: directory.join("fio"), samples, sample, _pages: pages };
        for number in 0..samples {
            fio.run(Pattern::Write, number, ByteCount::mib(4).min(sample), 8)?;
        }
        Ok(fio)
    }

    /// Goes once over a sample in blocks of `block`, `depth` of them under way.
    ///
    /// # Errors
    /// What fio says.
    pub(super) fn run(
        &self,
        pattern: Pattern,
        number: u64,
        block: ByteCount,
        depth: usize,
    ) -> Result<Reached, Error> {
        let mode = match pattern {
            Pattern::Write => "write",
            Pattern::RandomRead => "randread",
        };
        let output = Command::new("fio")
            .arg("--name=tidefs")
            .arg(format!("--filename={}", self.file.display()))
            .arg(format!("--offset={}", self.sample.get() * (number % self.samples)))
            .arg(format!("--size={}", self.sample.get()))
            .arg(format!("--rw={mode}"))
            .arg(format!("--bs={}", block.get()))
            .arg(format!("--iodepth={depth}"))
            .args(["--ioengine=io_uring", "--direct=1", "--iomem=mmaphuge"])
            .args(["--output-format=json", "--percentile_list=50"])
            .output()
            .map_err(Error::system::<std::io::Error>("run fio"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Error::Invalid(format!("fio failed: {}", said.trim())));
        }
        reached_in(&text, pattern).ok_or_else(|| Error::Invalid(format!("fio said nothing usable: {text}")))
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        // Never made when nothing was written.
        let _ = fs::remove_file(&self.file);
    }
}

fn reached_in(text: &str, pattern: Pattern) -> Option<Reached> {
    // Warnings may stand before the JSON.
    let output: Output = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let job = output.jobs.into_iter().next()?;
    let side = match pattern {
        Pattern::Write => job.write,
        Pattern::RandomRead => job.read,
    };
    let median_ns = side.clat_ns.percentile.values().next().copied()?;
    (side.bw_bytes > 0.0).then_some(Reached { rate: side.bw_bytes / 1e9, latency_us: median_ns / 1e3 })
}

/// Huge pages that stay free for fio, as many as were there before when this is dropped or a signal ends the bench.
#[derive(Debug)]
struct HugePages {
    /// `None` when enough were free.
    _more: Option<Change>,
}

impl HugePages {
    fn reserve(pages: u64) -> Result<Self, Error> {
        let path = Path::new(NR_HUGE_PAGES);
        let free = free_huge_pages(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
        if free >= pages {
            return Ok(Self { _more: None });
        }
        let before = fs::read_to_string(path).map_err(Error::file("read", path))?;
        let before: u64 = before.trim().parse().unwrap_or(0);
        let take = || fs::write(path, (before + pages - free).to_string());
        let more = Change::make(take, move || set_back(before)).map_err(Error::file("write", path))?;
        let free = free_huge_pages(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
        if free < pages {
            let what =
                format!("{free} of {pages} huge pages of 2 MiB are to be had for fio: free some memory");
            return Err(Error::Invalid(what));
        }
        Ok(Self { _more: Some(more) })
    }
}

fn set_back(before: u64) {
    if let Err(error) = fs::write(NR_HUGE_PAGES, before.to_string()) {
        eprintln!("tidefs bench: vm.nr_hugepages was {before} and could not be set back: {error}");
    }
}

fn free_huge_pages(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_side_that_worked_is_read_from_what_fio_says() {
        let text = r#"fio: a warning
{"jobs":[{"read":{"bw_bytes":2500000000,"clat_ns":{"percentile":{"50.000000":1974000}}},
          "write":{"bw_bytes":0,"clat_ns":{"min":0}}}]}"#;
        let read = reached_in(text, Pattern::RandomRead).unwrap();
        assert_eq!(read, Reached { rate: 2.5, latency_us: 1974.0 });
        assert_eq!(reached_in(text, Pattern::Write), None);
        assert_eq!(reached_in("fio: no space left", Pattern::Write), None);
    }

    #[test]
    fn free_huge_pages_are_a_line_of_meminfo() {
        assert_eq!(free_huge_pages("HugePages_Total:      64\nHugePages_Free:       12\n"), 12);
        assert_eq!(free_huge_pages("MemTotal: 5 kB\n"), 0);
    }
}
