//! Extended attributes: the control plane (`user.tidefs.*`), and whatever programs store of their own.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;

use crate::common::Mode;
use crate::common::modes::in_both_modes;
use crate::common::pattern;
use crate::common::sys::{
    Mapping, checksum_of, get_xattr, get_xattr_text, list_xattr, remove_xattr, set_xattr,
};
use crate::common::wait::{HANG, until};
use crate::fixture::{MIB, kv, publish_object};

in_both_modes!(
    policy_of_a_directory_holds_for_everything_below,
    a_nearer_directory_wins_over_a_farther_one,
    a_removed_policy_lets_the_inherited_one_hold_again,
    effective_values_are_listed,
    bad_values_are_refused_with_einval_and_change_nothing,
    unknown_names_of_ours_are_refused,
    directory_policies_are_refused_on_files,
    facts_of_an_object_can_be_read,
    facts_cannot_be_written_or_removed,
    the_checksum_depends_on_the_bytes_alone,
    attributes_of_programs_are_kept_on_files_and_directories,
    attributes_of_programs_are_set_while_a_small_object_is_open,
    attributes_of_programs_are_refused_on_a_small_object_without_a_name,
    attributes_of_programs_are_read_of_what_lost_its_name_while_it_is_open,
    attributes_of_programs_stay_with_a_renamed_file,
    attributes_of_programs_stay_with_a_file_that_is_rewritten,
    attributes_of_programs_stay_with_a_file_that_becomes_a_slot_file,
    create_and_replace_flags_are_honoured,
    an_attribute_without_a_name_is_refused_and_changes_nothing,
    a_buffer_that_is_too_small_is_told,
    an_unset_attribute_says_enodata,
);

/// Settings of a directory with two values each.
const SETTINGS: [(&str, &str, &str); 8] = [
    ("user.tidefs.quota", "64MiB", "32MiB"),
    ("user.tidefs.floor", "16MiB", "8MiB"),
    ("user.tidefs.ttl", "1h", "2h"),
    ("user.tidefs.pin", "hard", "soft"),
    ("user.tidefs.priority", "1", "2"),
    ("user.tidefs.policy", "lru", "s3fifo"),
    ("user.tidefs.scratch", "true", "false"),
    ("user.tidefs.durability", "ssd", "memory"),
];

/// Settings that hold for objects too.
const INHERITED: [&str; 5] = [
    "user.tidefs.ttl",
    "user.tidefs.pin",
    "user.tidefs.priority",
    "user.tidefs.scratch",
    "user.tidefs.durability",
];

fn set(path: &Path, name: &str, value: &str) {
    set_xattr(path, name, value.as_bytes()).unwrap_or_else(|error| panic!("{name}={value}: {error}"));
}

fn tree(kv: &Path) -> (PathBuf, PathBuf) {
    let deep = kv.join("model/layer");
    fs::create_dir_all(&deep).expect("mkdir");
    let key = deep.join("key");
    publish_object(&key, 1, 50_000);
    (deep, key)
}

fn policy_of_a_directory_holds_for_everything_below(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (deep, key) = tree(&kv);
    for (name, value, _) in SETTINGS {
        set(&kv, name, value);
        // It may be shown in another spelling, but that spelling must mean the same.
        let shown = get_xattr_text(&kv, name);
        set(&kv, name, &shown);
        assert_eq!(get_xattr_text(&kv, name), shown, "{name} of the directory itself");
    }
    for name in INHERITED {
        let wanted = get_xattr_text(&kv, name);
        assert_eq!(get_xattr_text(&deep, name), wanted, "{name} of a directory below");
        assert_eq!(get_xattr_text(&key, name), wanted, "{name} of an object below");
    }
    publish_object(&deep.join("later"), 2, 100);
    assert_eq!(
        get_xattr_text(&deep.join("later"), "user.tidefs.pin"),
        "hard",
        "of an object made afterwards"
    );
}

fn a_nearer_directory_wins_over_a_farther_one(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (deep, key) = tree(&kv);
    for name in INHERITED {
        let (_, far, near) = SETTINGS.into_iter().find(|setting| setting.0 == name).expect("a setting");
        set(&kv, name, far);
        set(&deep, name, near);
        let wanted = get_xattr_text(&deep, name);
        assert_ne!(wanted, get_xattr_text(&kv, name));
        assert_eq!(get_xattr_text(&key, name), wanted, "{name}");
    }
    set(&key, "user.tidefs.priority", "7");
    assert_eq!(get_xattr_text(&key, "user.tidefs.priority"), "7", "the object's own value wins over both");
}

fn a_removed_policy_lets_the_inherited_one_hold_again(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (deep, key) = tree(&kv);
    set(&kv, "user.tidefs.priority", "1");
    set(&deep, "user.tidefs.priority", "2");
    set(&key, "user.tidefs.priority", "3");
    remove_xattr(&key, "user.tidefs.priority").expect("removexattr");
    assert_eq!(get_xattr_text(&key, "user.tidefs.priority"), "2");
    remove_xattr(&deep, "user.tidefs.priority").expect("removexattr");
    assert_eq!(get_xattr_text(&key, "user.tidefs.priority"), "1");
    remove_xattr(&kv, "user.tidefs.priority").expect("removexattr");
    let default = get_xattr(&key, "user.tidefs.priority");
    assert!(matches!(default.as_deref(), Err(Errno::ENODATA) | Ok(b"0")), "{default:?}");
}

fn effective_values_are_listed(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (deep, key) = tree(&kv);
    set(&kv, "user.tidefs.pin", "hard");
    set(&kv, "user.tidefs.ttl", "1h");
    set(&key, "user.own", "x");
    for path in [&deep, &key] {
        let names = list_xattr(path).expect("listxattr");
        for name in ["user.tidefs.pin", "user.tidefs.ttl"] {
            assert!(names.iter().any(|listed| listed == name), "{name} in {names:?}");
        }
        for name in &names {
            get_xattr(path, name).unwrap_or_else(|error| panic!("{name} is listed and says {error}"));
        }
    }
    assert!(list_xattr(&key).expect("listxattr").contains(&"user.own".to_owned()));
}

fn bad_values_are_refused_with_einval_and_change_nothing(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for (name, good, _) in SETTINGS {
        set(&kv, name, good);
        let before = get_xattr_text(&kv, name);
        for bad in ["nonsense", "-1e9", "12 parsecs", "hard soft", "\u{0}", "99999999999999999999999"] {
            assert_eq!(set_xattr(&kv, name, bad.as_bytes()), Err(Errno::EINVAL), "{name}={bad:?}");
        }
        assert_eq!(set_xattr(&kv, name, &[0xFF, 0xFE]), Err(Errno::EINVAL), "{name} not in UTF-8");
        assert_eq!(get_xattr_text(&kv, name), before, "{name} after bad values");
    }
}

fn unknown_names_of_ours_are_refused(mode: Mode) {
    let (_mount, kv) = kv(mode);
    publish_object(&kv.join("key"), 1, 100);
    for name in ["user.tidefs.x", "user.tidefs.", "user.tidefs.Quota", "user.tidefs.record"] {
        for path in [&kv, &kv.join("key")] {
            let error = set_xattr(path, name, b"1").expect_err("an unknown setting is an error");
            assert!(matches!(error, Errno::EINVAL | Errno::EOPNOTSUPP), "{name}: {error}");
        }
    }
}

fn directory_policies_are_refused_on_files(mode: Mode) {
    let (_mount, kv) = kv(mode);
    publish_object(&kv.join("key"), 1, 100);
    for (name, value, _) in SETTINGS {
        if matches!(name, "user.tidefs.ttl" | "user.tidefs.pin" | "user.tidefs.priority") {
            continue;
        }
        let error =
            set_xattr(&kv.join("key"), name, value.as_bytes()).expect_err("it means nothing on a file");
        assert_eq!(error, Errno::EINVAL, "{name}");
    }
}

fn facts_of_an_object_can_be_read(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for length in [100, 50_000] {
        let path = kv.join(format!("k{length}"));
        publish_object(&path, 1, length);
        let tier = get_xattr_text(&path, "user.tidefs.tier");
        assert!(matches!(tier.as_str(), "memory" | "packed"), "{tier}");
        assert!(!get_xattr_text(&path, "user.tidefs.version").is_empty());
        assert!(checksum_of(&path).len() >= 8);
        assert!(!get_xattr_text(&path, "user.tidefs.why").is_empty());
    }
}

fn facts_cannot_be_written_or_removed(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    publish_object(&path, 1, 50_000);
    checksum_of(&path);
    for name in ["user.tidefs.tier", "user.tidefs.version", "user.tidefs.checksum", "user.tidefs.why"] {
        let before = get_xattr_text(&path, name);
        assert_eq!(set_xattr(&path, name, b"1"), Err(Errno::EPERM), "{name}");
        assert_eq!(remove_xattr(&path, name), Err(Errno::EPERM), "{name}");
        assert_eq!(get_xattr_text(&path, name), before);
    }
}

fn the_checksum_depends_on_the_bytes_alone(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for length in [0, 100, 32 * 1024, 200_000] {
        let bytes = pattern::bytes(1, length);
        fs::write(kv.join("straight"), &bytes).expect("write");
        crate::fixture::publish(&kv.join("renamed"), &bytes);
        fs::write(kv.join("other"), pattern::bytes(2, length + 1)).expect("write");
        let sum = |name: &str| checksum_of(&kv.join(name));
        assert_eq!(sum("straight"), sum("renamed"), "{length} bytes");
        assert_ne!(sum("straight"), sum("other"), "{length} bytes");
    }
}

fn attributes_of_programs_are_kept_on_files_and_directories(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (deep, key) = tree(&kv);
    for path in [&kv, &deep, &key] {
        set_xattr(path, "user.vllm_kv_crc32", b"\x00\x01\xFF binary").expect("setxattr");
        set_xattr(path, "user.empty", b"").expect("setxattr of an empty value");
        assert_eq!(get_xattr(path, "user.vllm_kv_crc32").expect("getxattr"), b"\x00\x01\xFF binary");
        assert_eq!(get_xattr(path, "user.empty").expect("getxattr"), b"");
        set_xattr(path, "user.vllm_kv_crc32", b"again").expect("setxattr");
        assert_eq!(get_xattr(path, "user.vllm_kv_crc32").expect("getxattr"), b"again");
        remove_xattr(path, "user.empty").expect("removexattr");
        assert_eq!(get_xattr(path, "user.empty"), Err(Errno::ENODATA));
        let large = pattern::bytes(1, 4000);
        set_xattr(path, "user.large", &large).expect("setxattr of 4000 bytes");
        assert_eq!(get_xattr(path, "user.large").expect("getxattr"), large);
    }
    assert_eq!(get_xattr(&deep.join("."), "user.large").expect("getxattr").len(), 4000);
    publish_object(&deep.join("fresh"), 1, 100);
    let inherited = get_xattr(&deep.join("fresh"), "user.vllm_kv_crc32");
    assert_eq!(inherited, Err(Errno::ENODATA), "attributes of programs are not inherited");
    assert_eq!(pattern::verify_object(&fs::read(&key).expect("read")), Ok(1));
}

/// fsetxattr(2).
fn set_through(file: &File, value: &[u8], flags: i32) -> Result<(), Errno> {
    let (value, length) = (value.as_ptr().cast(), value.len());
    // SAFETY: the name is NUL-terminated, the value has as many bytes as are said.
    Errno::result(unsafe { libc::fsetxattr(file.as_raw_fd(), c"user.crc".as_ptr(), value, length, flags) })
        .map(drop)
}

fn attributes_of_programs_are_set_while_a_small_object_is_open(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (key, object) = (kv.join("key"), pattern::object(1, 5000));
    crate::fixture::publish(&key, &object);
    // The daemon hears of a close a moment after it has returned.
    let is_packed = || get_xattr_text(&key, "user.tidefs.tier") == "packed";
    assert!(until(HANG, is_packed), "{}", get_xattr_text(&key, "user.tidefs.tier"));
    let reader = File::open(&key).expect("open");
    let mapping = Mapping::shared(&reader, object.len()).expect("mmap");
    assert_eq!(mapping.read(0, 100), object[..100]);
    let (before, after) = (File::open(&key).expect("open"), || File::open(&key).expect("open"));
    set_through(&before, b"1234", 0).expect("through a descriptor of its own");
    assert_eq!(get_xattr(&key, "user.crc").expect("getxattr"), b"1234");
    // Who has it open or mapped reads on, and so does who opens it then, by whatever way.
    for file in [&reader, &before, &after()] {
        let mut bytes = vec![0; object.len()];
        file.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(bytes, object);
        assert_eq!(Mapping::shared(file, object.len()).expect("mmap").bytes(), object);
    }
    assert_eq!(mapping.bytes(), object);
    drop((reader, mapping, before));
    set_through(&after(), b"56", libc::XATTR_REPLACE).expect("again");
    assert_eq!(get_xattr(&key, "user.crc").expect("getxattr"), b"56");
    assert_eq!(fs::read(&key).expect("read"), object);
}

fn attributes_of_programs_are_refused_on_a_small_object_without_a_name(mode: Mode) {
    let (mount, kv) = kv(mode);
    let key = kv.join("key");
    publish_object(&key, 1, 5000);
    // Until the daemon has heard of the close it is not packed with others.
    mount.wait_until_closed([&key]);
    let reader = File::open(&key).expect("open");
    fs::remove_file(&key).expect("unlink");
    assert_eq!(set_through(&reader, b"1234", 0), Err(Errno::EOPNOTSUPP));
    let mut bytes = vec![0; 5000];
    reader.read_exact_at(&mut bytes, 0).expect("read");
    assert_eq!(pattern::verify_object(&bytes), Ok(1));
}

fn attributes_of_programs_are_read_of_what_lost_its_name_while_it_is_open(mode: Mode) {
    let (mount, kv) = kv(mode);
    let key = kv.join("key");
    for (length, is_decorated) in [(100, false), (100, true), (MIB, false), (MIB, true)] {
        for is_replaced in [false, true] {
            publish_object(&key, 1, length);
            // Until then the daemon has a file of it.
            mount.wait_until_closed([&key]);
            if is_decorated {
                set(&key, "user.crc", "1");
            }
            let reader = File::open(&key).expect("open");
            if is_replaced {
                publish_object(&key, 2, length);
            } else {
                fs::remove_file(&key).expect("unlink");
            }
            let opened = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
            let which = format!("{length} bytes, replaced: {is_replaced}");
            let expected = if is_decorated { Ok(b"1".to_vec()) } else { Err(Errno::ENODATA) };
            assert_eq!(get_xattr(&opened, "user.crc"), expected, "{which}");
            let names = list_xattr(&opened).expect("listxattr");
            assert_eq!(names.iter().any(|name| name == "user.crc"), is_decorated, "{which}");
            let outcome = set_through(&reader, b"2", 0);
            assert!(matches!(outcome, Ok(()) | Err(Errno::EOPNOTSUPP)), "{which}: {outcome:?}");
        }
    }
}

fn attributes_of_programs_stay_with_a_renamed_file(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for length in [100, 50_000] {
        fs::write(kv.join("a.tmp"), pattern::object(1, length)).expect("write");
        set_xattr(&kv.join("a.tmp"), "user.crc", b"1234").expect("setxattr");
        fs::rename(kv.join("a.tmp"), kv.join("a")).expect("rename");
        assert_eq!(get_xattr(&kv.join("a"), "user.crc").expect("getxattr"), b"1234", "{length}");
        publish_object(&kv.join("a"), 2, length);
        assert_eq!(
            get_xattr(&kv.join("a"), "user.crc"),
            Err(Errno::ENODATA),
            "it belongs to the replaced file"
        );
    }
}

fn attributes_of_programs_stay_with_a_file_that_is_rewritten(mode: Mode) {
    let (mount, kv) = kv(mode);
    for length in [100, 50_000] {
        let key = kv.join(format!("key{length}"));
        publish_object(&key, 1, length);
        set_xattr(&key, "user.crc", b"1234").expect("setxattr");
        let truncating = File::create(&key).expect("open with O_TRUNC");
        set_through(&truncating, b"56", libc::XATTR_REPLACE)
            .expect("it is there while the file is rewritten");
        (&truncating).write_all(&pattern::object(2, length)).expect("write");
        drop(truncating);
        mount.wait_until_closed([&key]);
        assert_eq!(get_xattr(&key, "user.crc").expect("getxattr"), b"56", "rewritten from its start");
        let in_place = File::options().write(true).open(&key).expect("open to write");
        in_place.write_all_at(b"x", 50).expect("write");
        drop(in_place);
        mount.wait_until_closed([&key]);
        assert_eq!(get_xattr(&key, "user.crc").expect("getxattr"), b"56", "a byte of it was rewritten");
    }
}

fn attributes_of_programs_stay_with_a_file_that_becomes_a_slot_file(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let early = TimeSpec::new(1_000_000_000, 0);
    for is_unlinked in [false, true] {
        let path = kv.join("slots");
        let file = File::options().read(true).write(true).create_new(true).open(&path).expect("create");
        file.write_all_at(b"bytes", 0).expect("pwrite");
        set_through(&file, b"1", 0).expect("fsetxattr");
        futimens(&file, &early, &early).expect("futimens");
        if is_unlinked {
            fs::remove_file(&path).expect("unlink");
            assert_eq!(
                file.metadata().expect("fstat").mtime(),
                1_000_000_000,
                "its unlink does not write it"
            );
        } else {
            file.set_len(1 << 30).expect("ftruncate");
        }
        // It may have lost its name.
        let opened = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        assert_eq!(get_xattr_text(&opened, "user.tidefs.tier"), "scratch");
        assert_eq!(get_xattr(&opened, "user.crc"), Ok(b"1".to_vec()), "unlinked: {is_unlinked}");
        drop(file);
        if !is_unlinked {
            fs::remove_file(&path).expect("unlink");
        }
    }
}

fn create_and_replace_flags_are_honoured(mode: Mode) {
    let (_mount, kv) = kv(mode);
    publish_object(&kv.join("key"), 1, 100);
    let path = crate::common::sys::c_path(&kv.join("key"));
    let set = |flags| {
        // SAFETY: path and name are NUL-terminated, the value is one byte long.
        let result =
            unsafe { libc::setxattr(path.as_ptr(), c"user.a".as_ptr(), b"1".as_ptr().cast(), 1, flags) };
        Errno::result(result).map(drop)
    };
    let both = libc::XATTR_CREATE | libc::XATTR_REPLACE;
    assert_eq!(set(libc::XATTR_REPLACE), Err(Errno::ENODATA));
    assert_eq!(set(both), Err(Errno::ENODATA));
    assert_eq!(set(libc::XATTR_CREATE), Ok(()));
    assert_eq!(set(libc::XATTR_CREATE), Err(Errno::EEXIST));
    assert_eq!(set(both), Err(Errno::EEXIST));
    assert_eq!(set(libc::XATTR_REPLACE), Ok(()));
}

fn an_attribute_without_a_name_is_refused_and_changes_nothing(mode: Mode) {
    let (mount, kv) = kv(mode);
    let key = kv.join("key");
    publish_object(&key, 1, 100);
    mount.wait_until_closed([&key]);
    for path in [&key, &kv] {
        assert_eq!(set_xattr(path, "user.", b"1"), Err(Errno::EINVAL));
        assert_eq!(get_xattr(path, "user."), Err(Errno::EINVAL));
        assert_eq!(remove_xattr(path, "trusted.other"), Err(Errno::EOPNOTSUPP));
        assert_eq!(remove_xattr(path, "user."), Err(Errno::EINVAL));
    }
    assert_eq!(get_xattr_text(&key, "user.tidefs.tier"), "packed", "it got a segment for that");
}

fn a_buffer_that_is_too_small_is_told(mode: Mode) {
    let (_mount, kv) = kv(mode);
    publish_object(&kv.join("key"), 1, 100);
    set(&kv.join("key"), "user.a", "ten bytes.");
    let path = crate::common::sys::c_path(&kv.join("key"));
    let mut room = [0_u8; 4];
    let mut get = |length| {
        // SAFETY: path and name are NUL-terminated and `room` is writable for `length` bytes, at most four.
        let result =
            unsafe { libc::getxattr(path.as_ptr(), c"user.a".as_ptr(), room.as_mut_ptr().cast(), length) };
        Errno::result(result)
    };
    assert_eq!(get(0), Ok(10), "a length of 0 asks for the size");
    assert_eq!(get(4), Err(Errno::ERANGE));
    let mut names = [0_u8; 4];
    let mut list = |length| {
        // SAFETY: the path is NUL-terminated and `names` is writable for `length` bytes, at most four.
        Errno::result(unsafe { libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), length) })
    };
    assert!(list(0).expect("a length of 0 asks for the size") >= 7);
    assert_eq!(list(4), Err(Errno::ERANGE));
}

fn an_unset_attribute_says_enodata(mode: Mode) {
    let (_mount, kv) = kv(mode);
    publish_object(&kv.join("key"), 1, 100);
    for path in [&kv, &kv.join("key")] {
        assert_eq!(get_xattr(path, "user.missing"), Err(Errno::ENODATA));
        assert_eq!(remove_xattr(path, "user.missing"), Err(Errno::ENODATA));
    }
    assert_eq!(get_xattr(&kv.join("missing"), "user.a"), Err(Errno::ENOENT));
}
