//! The command line of `tidefsd`.

use std::io;
use std::path::PathBuf;

use clap::{CommandFactory, Parser};

use super::exit::ExitStatus;
use super::options::Flag;
use super::settings::SETTINGS;

/// Mounts a KV cache filesystem on DIR and serves it until SIGTERM or SIGINT, or until its terminal hangs up (SIGHUP).
///
/// Keys are files. What is written and closed or renamed stays in shared memory, up to a fixed capacity, and the
/// kernel serves it from there; when the cache is full, what is least worth keeping leaves. The daemon stays in
/// the foreground and prints `tidefs: mounted on DIR` when the mount answers. SIGHUP is ignored under nohup(1), and without a
/// terminal, as under systemd: a daemon that is to read its configuration again is stopped and started.
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(
    name = "tidefsd",
    version,
    after_help = "Example: tidefsd /mnt/kv --capacity 64GiB\nSee --help for all options, files and exit codes.",
    after_long_help = after_long_help(),
)]
pub struct DaemonArgs {
    /// Directory to mount on. It must exist; what is in it is hidden while mounted.
    #[arg(value_name = "DIR")]
    pub mount_dir: PathBuf,

    /// Shared memory that the cache may hold, for example 64GiB; short for `-o memory.capacity=SIZE`.
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<String>,

    /// Settings, separated by commas; `\,` is a comma in a value. May be repeated; later ones win.
    #[arg(short = 'o', value_name = "KEY=VALUE,...")]
    pub options: Vec<String>,

    /// Configuration file to read instead of those in /etc/tidefs; without it `-o config=FILE` counts, then TIDEFS_CONFIG.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Check the configuration, tell every problem, and mount nothing.
    #[arg(long)]
    pub check_config: bool,

    /// Print what the check finds as one JSON document.
    #[arg(long, requires = "check_config")]
    pub json: bool,
}

/// What `tidefs manpages` asks the daemon with, as its only argument: only the daemon knows its own options.
pub const MAN_PAGE: &str = "--man-page";

impl DaemonArgs {
    /// The manual page of the daemon, for section 8.
    ///
    /// # Errors
    /// None: it is written to memory.
    pub fn man_page() -> io::Result<Vec<u8>> {
        let mut page = Vec::new();
        clap_mangen::Man::new(Self::command()).section("8").render(&mut page)?;
        Ok(page)
    }

    /// The named flags that stand for settings.
    #[must_use]
    pub fn flags(&self) -> Vec<Flag> {
        self.capacity
            .iter()
            .map(|size| Flag {
                key: "memory.capacity".to_owned(),
                value: Some(size.clone()),
                text: format!("--capacity {size}"),
            })
            .collect()
    }
}

/// Settings, files, exit codes and examples, from the same tables that the program uses.
fn after_long_help() -> String {
    let mut text = String::from("Settings for -o (short name in parentheses):\n");
    for setting in SETTINGS {
        let alias = setting.aliases.first().map(|alias| format!(" ({alias})")).unwrap_or_default();
        let default = setting.default_text().replace('`', "");
        text.push_str(&format!("  {}{alias}: {}\n", setting.key, setting.kind.replace('`', "")));
        text.push_str(&format!("      default: {default}\n"));
    }
    text.push_str(
        "\nThe same setting is TIDEFS_SECTION_NAME in the environment, and NAME in [SECTION] of a file:\n  \
         /etc/tidefs/tidefs.toml, then /etc/tidefs/INSTANCE.toml (as root), or the one of --config.\n\
         Flags win over the environment, which wins over files.\n\nExit codes:\n",
    );
    for (status, meaning) in ExitStatus::ALL {
        text.push_str(&format!("  {}  {meaning}\n", status.code()));
    }
    text.push_str(
        "\nExamples:\n  \
         tidefsd /mnt/kv --capacity 64GiB\n  \
         tidefsd /mnt/kv -o capacity=64GiB,policy=lru,on_stop=discard\n  \
         TIDEFS_LOG_LEVEL=debug tidefsd /mnt/kv\n  \
         tidefsd /mnt/kv --config kv.toml --check-config --json\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        DaemonArgs::command().debug_assert();
    }

    #[test]
    fn the_long_help_names_every_setting_and_exit_code() {
        let help = DaemonArgs::command().render_long_help().to_string();
        for setting in SETTINGS {
            assert!(help.contains(setting.key), "{}", setting.key);
        }
        assert!(help.contains("Exit codes") && help.contains("Examples"));
    }

    #[test]
    fn the_manual_page_names_every_option_and_setting() {
        let page = String::from_utf8(DaemonArgs::man_page().unwrap()).unwrap().replace("\\-", "-");
        let options = ["--capacity", "--config", "--check-config", "--json"];
        for named in options.into_iter().chain(SETTINGS.iter().map(|setting| setting.key)) {
            assert!(page.contains(named), "{named}");
        }
        assert!(page.starts_with(".ie") && page.contains(".TH tidefsd 8"), "{page}");
    }

    #[test]
    fn options_may_be_repeated_and_the_directory_is_required() {
        let args = DaemonArgs::try_parse_from(["tidefsd", "/mnt/kv", "-o", "threads=2", "-o", "log=debug"]);
        assert_eq!(args.unwrap().options, ["threads=2", "log=debug"]);
        let error = DaemonArgs::try_parse_from(["tidefsd"]).unwrap_err();
        assert_eq!(error.exit_code(), i32::from(ExitStatus::Configuration.code()));
    }

    #[test]
    fn capacity_is_a_flag_like_any_other() {
        let args = DaemonArgs::try_parse_from(["tidefsd", "/mnt/kv", "--capacity", "8GiB"]).unwrap();
        assert_eq!(args.flags()[0].text, "--capacity 8GiB");
    }
}
