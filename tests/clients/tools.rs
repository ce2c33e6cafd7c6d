//! The tools that people use on any directory: cp, dd, tar, find, rm, du, df and their like.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::common::modes::in_both_modes;
use super::common::{Mode, Mount, pattern, program};

/// Longest time for one line of shell.
const LINE: Duration = Duration::from_secs(60);

/// Runs one line of shell, with `$TREE` and `$PLACE` set, and returns what it printed.
#[track_caller]
fn shell(tree: &Path, place: &Path, line: &str) -> String {
    let mut command = Command::new("bash");
    command.args(["-o", "pipefail", "-euc", line]).env("TREE", tree).env("PLACE", place).env("LC_ALL", "C");
    program::run(&mut command, LINE).success(line).output
}

/// A tree outside the mount: 40 files of 0 B to 1 MiB in nested directories, with modes and old times.
fn sample_tree() -> TempDir {
    let tree = tempfile::tempdir().expect("a temporary directory");
    for number in 0..40_u32 {
        let folder = tree.path().join(format!("d{}/e{}", number % 4, number % 3));
        fs::create_dir_all(&folder).expect("a directory");
        let length = usize::try_from((number * number * 7919) % 1_048_577).expect("it fits");
        let file = folder.join(format!("file {number}.bin"));
        fs::write(&file, pattern::bytes(number.into(), length)).expect("a file");
        let mode = [0o644, 0o600, 0o444, 0o755][usize::try_from(number % 4).expect("it fits")];
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("a mode");
    }
    tree
}

fn cp_and_tar_keep_bytes_modes_and_times(mode: Mode) {
    let mount = Mount::start(&mode.options(&["capacity=512MiB"]));
    let (tree, place) = (sample_tree(), mount.namespace("tools"));
    let run = |line: &str| shell(tree.path(), &place, line);
    // mtimes in the past, one per file, so that a tool that loses them is found out
    run(
        "n=0; find \"$TREE\" -type f | sort | while read -r f; do n=$((n+1)); touch -d \"@$((1577934245 + n)).123456789\" \"$f\"; done",
    );
    let listing = "find . -type f -printf '%P %s %m %T@\\n' | sort";
    let wanted = run(&format!("cd \"$TREE\"; {listing}"));
    run("cp -a \"$TREE\" \"$PLACE/copied\"");
    run(
        "mkdir \"$PLACE/untarred\"; tar -C \"$TREE\" --format=posix -cf - . | tar -C \"$PLACE/untarred\" -xpf -",
    );
    for name in ["copied", "untarred"] {
        assert_eq!(run(&format!("cd \"$PLACE/{name}\"; {listing}")), wanted, "{name}");
        run(&format!("diff -r \"$TREE\" \"$PLACE/{name}\""));
    }
    // and out again, and from one directory of the mount to another
    run(
        "cp -a \"$PLACE/copied\" \"$TREE/../back.$$\"; diff -r \"$TREE\" \"$TREE/../back.$$\"; rm -rf \"$TREE/../back.$$\"",
    );
    run("cp -a \"$PLACE/copied\" \"$PLACE/twice\"; diff -r \"$TREE\" \"$PLACE/twice\"");
    run("mv \"$PLACE/twice\" \"$PLACE/moved\"; diff -r \"$TREE\" \"$PLACE/moved\"");
    run(
        "cd \"$PLACE/copied\"; sha256sum --quiet -c <(cd \"$TREE\"; find . -type f -print0 | xargs -0 sha256sum)",
    );
}

fn find_du_df_and_rm_agree(mode: Mode) {
    let mount = Mount::start(&mode.options(&["capacity=512MiB"]));
    let (tree, place) = (sample_tree(), mount.namespace("tools"));
    let run = |line: &str| shell(tree.path(), &place, line);
    let number =
        |line: &str| run(line).trim().parse::<u64>().unwrap_or_else(|error| panic!("{line}: {error}"));
    let (used_before, blocks) = (
        number("df -B1 --output=used \"$PLACE\" | tail -1"),
        number("df -B1 --output=size \"$PLACE\" | tail -1"),
    );
    if !mount.is_bare() {
        assert_eq!(blocks, 512 << 20, "df shows the capacity");
    }
    run("cp -a \"$TREE/.\" \"$PLACE\"");
    assert_eq!(number("find \"$PLACE\" -type f | wc -l"), 40, "files");
    assert_eq!(number("find \"$PLACE\" -type d | wc -l"), number("find \"$TREE\" -type d | wc -l"));
    assert_eq!(
        number("find \"$PLACE\" -type f -size +100k | wc -l"),
        number("find \"$TREE\" -type f -size +100k | wc -l")
    );
    let bytes = number("cd \"$PLACE\"; find . -type f -printf '%s\\n' | awk '{sum += $1} END {print sum}'");
    assert_eq!(
        bytes,
        number("cd \"$TREE\"; find . -type f -printf '%s\\n' | awk '{sum += $1} END {print sum}'")
    );
    let disk =
        number("cd \"$PLACE\"; find . -type f -printf '%b\\n' | awk '{sum += $1} END {print sum * 512}'");
    assert!(disk >= bytes, "st_blocks tells {disk} bytes for {bytes} bytes of data");
    let du = number("du -s --block-size=1 \"$PLACE\" | cut -f1");
    assert!(du >= bytes && du <= bytes + (4 << 20), "du says {du} for {bytes} bytes");
    if !mount.is_bare() {
        let used = number("df -B1 --output=used \"$PLACE\" | tail -1") - used_before;
        assert!(used >= bytes / 2, "df says {used} for {bytes} bytes");
    }
    run(
        "ls -laR \"$PLACE\"; find \"$PLACE\" -name '* 7.bin' -exec cat {} + | cmp - \"$(find \"$TREE\" -name '* 7.bin')\"",
    );
    run("rm -rf \"$PLACE\"/*");
    assert_eq!(number("find \"$PLACE\" | wc -l"), 1);
    if !mount.is_bare() {
        let back = || number("df -B1 --output=used \"$PLACE\" | tail -1") <= used_before;
        assert!(super::common::wait::until(super::common::wait::HANG, back), "rm gave its bytes back");
    }
}

fn dd_sed_and_truncate_write_in_their_ways(mode: Mode) {
    let mount = Mount::start(&mode.options(&["capacity=512MiB"]));
    let (tree, place) = (tempfile::tempdir().expect("a directory"), mount.namespace("tools"));
    let run = |line: &str| shell(tree.path(), &place, line);
    fs::write(tree.path().join("in"), pattern::bytes(1, 8 << 20)).expect("a file");
    run("dd if=\"$TREE/in\" of=\"$PLACE/plain\" bs=1M status=none; cmp \"$TREE/in\" \"$PLACE/plain\"");
    run(
        "dd if=\"$TREE/in\" of=\"$PLACE/synced\" bs=64k conv=fsync status=none; cmp \"$TREE/in\" \"$PLACE/synced\"",
    );
    run(
        "dd if=\"$TREE/in\" of=\"$PLACE/direct\" bs=1M oflag=direct status=none; cmp \"$TREE/in\" \"$PLACE/direct\"",
    );
    run(
        "dd if=\"$PLACE/direct\" of=\"$TREE/out\" bs=1M iflag=direct status=none; cmp \"$TREE/in\" \"$TREE/out\"",
    );
    run("dd if=\"$TREE/in\" of=\"$PLACE/one\" bs=8M count=1 status=none; cmp \"$TREE/in\" \"$PLACE/one\"");
    // a patch in the middle, on both, must give the same file
    run(
        "for f in \"$TREE/in\" \"$PLACE/plain\"; do printf patched | dd of=\"$f\" bs=1 seek=1000000 conv=notrunc status=none; done; cmp \"$TREE/in\" \"$PLACE/plain\"",
    );
    run(
        "for f in \"$TREE/in\" \"$PLACE/plain\"; do dd if=/dev/zero of=\"$f\" bs=1000 seek=9000 count=1 conv=notrunc status=none; done; cmp \"$TREE/in\" \"$PLACE/plain\"",
    );
    run(
        "for f in \"$TREE/in\" \"$PLACE/plain\"; do truncate -s 3333333 \"$f\"; truncate -s 4444444 \"$f\"; done; cmp \"$TREE/in\" \"$PLACE/plain\"",
    );
    run(
        "echo one > \"$PLACE/text\"; echo two >> \"$PLACE/text\"; sed -i s/one/1/ \"$PLACE/text\"; test \"$(cat \"$PLACE/text\")\" = \"$(printf '1\\ntwo')\"",
    );
    run("sort -r -o \"$PLACE/text\" \"$PLACE/text\"; test \"$(head -1 \"$PLACE/text\")\" = two");
    run(
        "install -m 640 \"$TREE/in\" \"$PLACE/installed\"; cmp \"$TREE/in\" \"$PLACE/installed\"; test \"$(stat -c %a \"$PLACE/installed\")\" = 640",
    );
    run(
        "mktemp -p \"$PLACE\" | xargs rm; split -n 5 \"$TREE/in\" \"$PLACE/part.\"; cat \"$PLACE\"/part.* | cmp - \"$TREE/in\"",
    );
}

in_both_modes!(
    cp_and_tar_keep_bytes_modes_and_times,
    find_du_df_and_rm_agree,
    dd_sed_and_truncate_write_in_their_ways,
);
