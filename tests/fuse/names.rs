//! Names and directories: what may be a name, fan-outs as clients make them, deep paths.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open, openat, renameat};
use nix::sys::stat::{Mode as Permissions, mkdirat};

use crate::common::modes::in_both_modes;
use crate::common::pattern;
use crate::common::sys::{failure, open_file, raw_names, sorted_names};
use crate::common::{Mode, Peer};
use crate::fixture::{kv, publish_object};

in_both_modes!(
    a_name_of_255_bytes_works_and_256_are_too_long,
    any_byte_but_slash_and_nul_is_allowed_in_a_name,
    names_of_clients_are_allowed,
    a_path_as_long_as_the_kernel_takes_works,
    directories_are_2048_levels_deep_at_most,
    mkdir_p_makes_a_deep_path_and_says_eexist_afterwards,
    a_fan_out_of_4096_directories_is_made_and_used,
    every_directory_lists_dot_and_dot_dot,
    a_missing_parent_says_enoent_and_a_file_as_parent_enotdir,
    a_file_at_the_top_is_an_object_like_any_other,
    names_are_case_sensitive,
    inode_numbers_stay_and_differ,
    a_directory_changes_its_times_with_its_names,
);

fn a_name_of_255_bytes_works_and_256_are_too_long(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    let longest = kv.join("n".repeat(255));
    fs::write(&longest, b"bytes").expect("create a name of 255 bytes");
    assert_eq!(other.read(&longest).expect("read"), b"bytes");
    fs::rename(&longest, kv.join("m".repeat(255))).expect("rename");
    fs::create_dir(kv.join("d".repeat(255))).expect("mkdir");
    let too_long = kv.join("n".repeat(256));
    assert_eq!(failure(File::create(&too_long), "create"), Errno::ENAMETOOLONG);
    assert_eq!(failure(fs::metadata(&too_long), "stat"), Errno::ENAMETOOLONG);
    assert_eq!(failure(fs::create_dir(&too_long), "mkdir"), Errno::ENAMETOOLONG);
    assert_eq!(failure(fs::rename(kv.join("m".repeat(255)), &too_long), "rename"), Errno::ENAMETOOLONG);
    assert_eq!(sorted_names(&kv), ["d".repeat(255), "m".repeat(255)]);
}

fn any_byte_but_slash_and_nul_is_allowed_in_a_name(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut expected: Vec<OsString> = Vec::new();
    for byte in (1..=255_u8).filter(|byte| *byte != b'/') {
        let name = OsStr::from_bytes(&[b'a', byte, b'z']).to_owned();
        fs::write(kv.join(&name), [byte]).unwrap_or_else(|error| panic!("byte {byte}: {error}"));
        expected.push(name);
    }
    for name in ["...", " ", "\n", "-rf", "*", "~", "%2F", "a\\b", "é", "键", "\u{1F600}", ".hidden", "..a"]
    {
        fs::write(kv.join(name), b"x").unwrap_or_else(|error| panic!("{name:?}: {error}"));
        expected.push(name.into());
    }
    let listed = fs::read_dir(&kv).expect("list").map(|entry| entry.expect("entry").file_name());
    let mut listed: Vec<_> = listed.collect();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
    for name in &expected {
        let bytes = fs::read(kv.join(name)).unwrap_or_else(|error| panic!("{name:?}: {error}"));
        let wanted =
            if name.len() == 3 && name.as_bytes().starts_with(b"a") && name.as_bytes().ends_with(b"z") {
                vec![name.as_bytes()[1]]
            } else {
                b"x".to_vec()
            };
        assert_eq!(bytes, wanted, "{name:?}");
    }
}

fn names_of_clients_are_allowed(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let long_key = format!("meta-llama-SEP-Llama-3-70B@0x3@0@{}@{}.data", "f".repeat(64), "s".repeat(120));
    for (seed, name) in [
        ".5f3c9e.tmp",
        "model@8@0@-3f2a@torch.bfloat16.pt",
        long_key.as_str(),
        "obj_17_ab%2Fcd=1,2.kvcache.safetensors",
        "obj_17_ab%2Fcd=1,2.kvcache.safetensors.metadata",
        "dynamo-kvbm-disk-cache-a8XkQ2",
    ]
    .into_iter()
    .enumerate()
    {
        let seed = crate::fixture::offset(seed);
        publish_object(&kv.join(name), seed, 5000);
        assert_eq!(pattern::verify_object(&fs::read(kv.join(name)).expect("read")), Ok(seed), "{name}");
    }
    assert_eq!(sorted_names(&kv).len(), 6);
}

fn a_path_as_long_as_the_kernel_takes_works(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut path = kv.clone();
    while path.as_os_str().len() < 4095 - 256 {
        path.push("p".repeat(200));
    }
    fs::create_dir_all(&path).expect("mkdir -p");
    // PATH_MAX is 4096 with the final NUL.
    let rest = 4095 - path.as_os_str().len() - 1;
    let file = path.join("f".repeat(rest));
    assert_eq!(file.as_os_str().len(), 4095);
    fs::write(&file, b"deep").expect("create at a path of 4095 bytes");
    assert_eq!(Peer::spawn().read(&file).expect("read"), b"deep");
    let mut longer: PathBuf = path;
    longer.push("f".repeat(rest + 1));
    assert_eq!(failure(fs::metadata(&longer), "stat"), Errno::ENAMETOOLONG);
}

fn directories_are_2048_levels_deep_at_most(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let one_more = |directory: &OwnedFd| mkdirat(directory, "d", Permissions::S_IRWXU);
    let mut deepest = open(&kv, OFlag::O_DIRECTORY, Permissions::empty()).expect("open");
    // The namespace is the first.
    for level in 2..=2048 {
        one_more(&deepest).unwrap_or_else(|error| panic!("level {level}: {error}"));
        deepest = openat(&deepest, "d", OFlag::O_DIRECTORY, Permissions::empty()).expect("open");
    }
    assert_eq!(one_more(&deepest), Err(Errno::ENAMETOOLONG));
    // Files are made there, and no directory is moved below it, be it empty or not.
    drop(openat(&deepest, "key", OFlag::O_CREAT | OFlag::O_WRONLY, Permissions::S_IRWXU).expect("a file"));
    fs::create_dir_all(kv.join("x/y")).expect("mkdir");
    let above = openat(&deepest, "..", OFlag::O_DIRECTORY, Permissions::empty()).expect("open");
    assert_eq!(renameat(AT_FDCWD, &kv.join("x/y"), &deepest, "y"), Err(Errno::ENAMETOOLONG));
    assert_eq!(renameat(AT_FDCWD, &kv.join("x"), &above, "x"), Err(Errno::ENAMETOOLONG));
    renameat(AT_FDCWD, &kv.join("x/y"), &above, "y").expect("it is not too deep there");
    renameat(AT_FDCWD, &kv.join("x"), &above, "x").expect("nothing is below it any more");
    // What is there is renamed in its place.
    fs::rename(kv.join("d"), kv.join("e")).expect("rename");
    fs::rename(kv.join("e"), kv.with_file_name("e")).expect("rename upwards");
}

fn mkdir_p_makes_a_deep_path_and_says_eexist_afterwards(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let deep = kv.join("a/b/c/d/e/f/g/h");
    fs::create_dir_all(&deep).expect("mkdir -p");
    fs::create_dir_all(&deep).expect("mkdir -p again");
    assert_eq!(failure(fs::create_dir(&deep), "mkdir"), Errno::EEXIST);
    publish_object(&deep.join("key"), 1, 100);
    assert_eq!(failure(fs::create_dir(deep.join("key")), "mkdir over a file"), Errno::EEXIST);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let path = kv.join("x/y/z");
            std::thread::spawn(move || fs::create_dir_all(path).expect("mkdir -p of several at once"))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no thread fails"));
    assert!(fs::metadata(kv.join("x/y/z")).expect("stat").is_dir());
}

fn a_fan_out_of_4096_directories_is_made_and_used(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for index in 0..4096 {
        fs::DirBuilder::new().mode(0o755).create(kv.join(format!("{index:03x}"))).expect("mkdir");
    }
    for index in 0..4096_u64 {
        publish_object(&kv.join(format!("{index:03x}/{index:032x}")), index, 200);
    }
    let listed = sorted_names(&kv);
    assert_eq!(listed.len(), 4096);
    let mut files = 0;
    for name in listed {
        for file in sorted_names(&kv.join(&name)) {
            let index = u64::from_str_radix(&file, 16).expect("a key");
            assert_eq!(format!("{index:03x}"), name);
            files += 1;
        }
    }
    assert_eq!(files, 4096);
}

fn every_directory_lists_dot_and_dot_dot(mode: Mode) {
    let (mount, kv) = kv(mode);
    fs::create_dir(kv.join("sub")).expect("mkdir");
    for path in [mount.path().to_path_buf(), kv.clone(), kv.join("sub")] {
        let directory = open_file(&path, libc::O_RDONLY | libc::O_DIRECTORY).expect("open");
        let names = raw_names(&directory, 4096).expect("getdents64");
        assert_eq!(names.iter().filter(|name| *name == b".").count(), 1, "{}", path.display());
        assert_eq!(names.iter().filter(|name| *name == b"..").count(), 1, "{}", path.display());
    }
    assert_eq!(
        fs::metadata(kv.join("sub/..")).expect("stat").ino(),
        fs::metadata(&kv).expect("stat").ino(),
        "`..` is the parent"
    );
}

fn a_missing_parent_says_enoent_and_a_file_as_parent_enotdir(mode: Mode) {
    let (_mount, kv) = kv(mode);
    assert_eq!(failure(File::create(kv.join("missing/key")), "create"), Errno::ENOENT);
    assert_eq!(failure(fs::create_dir(kv.join("missing/dir")), "mkdir"), Errno::ENOENT);
    publish_object(&kv.join("file"), 1, 100);
    assert_eq!(failure(File::create(kv.join("file/key")), "create"), Errno::ENOTDIR);
    assert_eq!(failure(fs::read_dir(kv.join("file")), "readdir"), Errno::ENOTDIR);
    assert_eq!(failure(fs::write(&kv, b"x"), "write to a directory"), Errno::EISDIR);
    assert_eq!(failure(fs::read(&kv), "read of a directory"), Errno::EISDIR);
}

fn a_file_at_the_top_is_an_object_like_any_other(mode: Mode) {
    let (mount, _) = kv(mode);
    for length in [100, 100_000] {
        let path = mount.join(format!("k{length}"));
        publish_object(&path, 1, length);
        assert_eq!(pattern::verify_object(&Peer::spawn().read(&path).expect("read")), Ok(1));
    }
    assert_eq!(sorted_names(mount.path()), ["k100", "k100000", "kv"]);
    fs::rename(mount.join("k100"), mount.join("kv/k")).expect("rename into a namespace");
    assert_eq!(pattern::verify_object(&fs::read(mount.join("kv/k")).expect("read")), Ok(1));
}

fn names_are_case_sensitive(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fs::write(kv.join("key"), b"lower").expect("write");
    fs::write(kv.join("KEY"), b"upper").expect("write");
    assert_eq!(fs::read(kv.join("key")).expect("read"), b"lower");
    assert_eq!(fs::read(kv.join("KEY")).expect("read"), b"upper");
}

fn inode_numbers_stay_and_differ(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut seen = std::collections::HashSet::new();
    for seed in 0..200 {
        let path = kv.join(format!("k{seed}"));
        publish_object(&path, seed, 100 + 50_000 * usize::from(seed % 50 == 0));
        let inode = fs::metadata(&path).expect("stat").ino();
        assert!(seen.insert(inode), "inode {inode} twice");
        assert_eq!(File::open(&path).expect("open").metadata().expect("fstat").ino(), inode);
    }
}

fn a_directory_changes_its_times_with_its_names(mode: Mode) {
    let (mount, kv) = kv(mode);
    let at = |name: &str| kv.join(name);
    let elsewhere = mount.namespace("other").join("below");
    let times = || {
        let facts = fs::metadata(&kv).expect("stat");
        ((facts.mtime(), facts.mtime_nsec()), (facts.ctime(), facts.ctime_nsec()))
    };
    let changes: [(&str, &dyn Fn()); 8] = [
        ("a new file", &|| publish_object(&at("key"), 1, 100)),
        ("a rename", &|| fs::rename(at("key"), at("other")).expect("rename")),
        ("an unlink", &|| fs::remove_file(at("other")).expect("unlink")),
        ("mkdir", &|| fs::create_dir(at("below")).expect("mkdir")),
        ("a rename of a directory", &|| fs::rename(at("below"), at("beside")).expect("rename")),
        ("a move of a directory away", &|| fs::rename(at("beside"), &elsewhere).expect("rename")),
        ("a move of a directory here", &|| fs::rename(&elsewhere, at("beside")).expect("rename")),
        ("rmdir", &|| fs::remove_dir(at("beside")).expect("rmdir")),
    ];
    for (what, change) in changes {
        let before = times();
        std::thread::sleep(std::time::Duration::from_millis(20));
        change();
        let after = times();
        assert!(after.0 > before.0, "{what} moves mtime: {before:?} {after:?}");
        assert!(after.1 > before.1, "{what} moves ctime: {before:?} {after:?}");
    }
}
