//! Facts of the machine that a reader needs to judge the numbers of a bench.

use std::fs;
use std::thread;

use serde::Serialize;
use tidefs_engine::types::ByteCount;

/// Where and on what a bench ran.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    cpu_model: String,
    cpus: usize,
    memory_bytes: u64,
    kernel: String,
    /// `/sys/kernel/mm/transparent_hugepage/enabled`, the chosen word alone.
    thp_enabled: String,
    /// `/sys/kernel/mm/transparent_hugepage/shmem_enabled`, the chosen word alone.
    thp_shmem: String,
    /// Whether a virtual machine gives free memory back to its host, so that writing to fresh memory waits for it.
    free_page_reporting: bool,
    /// Load average of the last minute when the bench began: above zero, neighbours were in the way.
    load_average: String,
    debug_build: bool,
    /// `TIDEFS_COMMIT`, when the caller said which commit was built.
    commit: Option<String>,
}

impl Machine {
    /// Asks the kernel. A fact that it does not tell is `unknown`.
    pub(crate) fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let or_unknown =
            |text: Option<&str>| text.map_or_else(|| "unknown".to_owned(), |text| text.trim().to_owned());
        Self {
            cpu_model: or_unknown(value_of(&read("/proc/cpuinfo"), "model name")),
            cpus: thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: meminfo("MemTotal").get(),
            kernel: or_unknown(read("/proc/sys/kernel/osrelease").split_whitespace().next()),
            thp_enabled: or_unknown(chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled"))),
            thp_shmem: or_unknown(chosen(&read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"))),
            free_page_reporting: is_page_reporting_on(&read(
                "/sys/module/page_reporting/parameters/page_reporting_order",
            )),
            load_average: or_unknown(read("/proc/loadavg").split_whitespace().next()),
            debug_build: cfg!(debug_assertions),
            commit: std::env::var("TIDEFS_COMMIT").ok(),
        }
    }

    /// One line for the head of a table.
    pub(crate) fn line(&self) -> String {
        let Self { cpu_model, cpus, kernel, thp_enabled, thp_shmem, load_average, .. } = self;
        let memory = ByteCount(self.memory_bytes);
        let commit = self.commit.as_deref().unwrap_or("not given");
        let reporting = if self.free_page_reporting { ", free page reporting on" } else { "" };
        format!(
            "{cpu_model}, {cpus} CPUs, {memory}, Linux {kernel}, THP {thp_enabled} (shmem {thp_shmem})\
             {reporting}, load {load_average}, commit {commit}"
        )
    }
}

/// Whether the order from which on free memory is reported to the host is one that exists. It is larger than any
/// while no device of the host asks for reports.
fn is_page_reporting_on(order: &str) -> bool {
    /// `MAX_PAGE_ORDER` of x86-64, and of arm64 with base pages of 4 KiB.
    const MAX_ORDER: u32 = 10;
    order.trim().parse().is_ok_and(|order: u32| order <= MAX_ORDER)
}

/// A line of `/proc/meminfo`, zero when it is missing.
pub(crate) fn meminfo(field: &str) -> ByteCount {
    kib_of(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), field)
}

/// The value of `field: N kB` in the text of a file of /proc, zero when it is missing.
pub(crate) fn kib_of(text: &str, field: &str) -> ByteCount {
    let kib = value_of(text, field).and_then(|value| value.split_whitespace().next()?.parse().ok());
    ByteCount::kib(kib.unwrap_or(0))
}

/// What follows the colon on the first line of `text` that starts with `field`.
fn value_of<'a>(text: &'a str, field: &str) -> Option<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == field)
        .map(|(_, value)| value)
}

/// The word in brackets of `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    Some(text.split_once('[')?.1.split_once(']')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_word_is_the_one_in_brackets() {
        assert_eq!(chosen("always within_size [never] deny\n"), Some("never"));
        assert_eq!(chosen("nothing chosen"), None);
    }

    #[test]
    fn reporting_is_on_when_its_order_is_one_that_exists() {
        assert!(is_page_reporting_on("5\n"));
        assert!(!is_page_reporting_on("11\n"));
        assert!(!is_page_reporting_on(""));
    }

    #[test]
    fn a_field_of_proc_is_read_in_bytes() {
        let status = "Name:\ttidefsd\nRssAnon:\t    1024 kB\nRssFile:\t 7 kB\n";
        assert_eq!(kib_of(status, "RssAnon"), ByteCount::mib(1));
        assert_eq!(kib_of(status, "RssShmem"), ByteCount::ZERO);
    }
}
