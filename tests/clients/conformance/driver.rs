//! Runs the cases of `cases.txt` through the library in Rust, in this process.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidefs_client::{Cache, Error, Pin, View, Writer};

/// The bytes that a seed and a length stand for.
pub(super) fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|index| u8::try_from((seed + 7 * (index % 251)) % 256).expect("below 256")).collect()
}

/// Length and checksum.
pub(super) fn sum(bytes: &[u8]) -> String {
    format!("{}:{:08x}", bytes.len(), crc32fast::hash(bytes))
}

fn found(view: Option<&View>) -> String {
    view.map_or_else(|| "miss".to_owned(), |view| sum(view))
}

/// One case as it runs.
struct Driver {
    place: PathBuf,
    cache: Cache,
    writer: Option<Writer>,
    held: Option<View>,
}

impl Driver {
    fn new(place: PathBuf) -> Self {
        let cache = Cache::open(&place).expect("the cache opens");
        Self { place, cache, writer: None, held: None }
    }

    fn writer(&mut self) -> Writer {
        self.writer.take().expect("an object was begun")
    }

    fn run(&mut self, operation: &str, words: &[&str]) -> Result<String, Error> {
        let key = words.first().copied().unwrap_or_default();
        let number = |index: usize| -> usize { words[index].parse().expect("a number") };
        let cache = &self.cache;
        let ok = |()| "ok".to_owned();
        match operation {
            "put" => cache.put(key, &pattern(number(1), number(2))).map(ok),
            "file" => {
                let (path, temporary) = (self.place.join(key), self.place.join(format!("{key}.tmp")));
                fs::write(&temporary, pattern(number(1), number(2))).expect("write");
                fs::rename(temporary, path).expect("rename");
                Ok(ok(()))
            }
            "get" => cache.get(key).map(|view| found(view.as_ref())),
            "cat" => Ok(sum(&fs::read(self.place.join(key)).expect("read"))),
            "lookup" => {
                let views = cache.lookup_many(words)?;
                let results: Vec<String> = views.iter().map(|view| found(view.as_ref())).collect();
                Ok(results.join(" "))
            }
            "into" => {
                let mut target = vec![0; number(1)];
                let length = cache.get_into(key, &mut target)?;
                Ok(length.map_or("miss".to_owned(), |length| {
                    format!("{length}/{}", sum(&target[..length.min(target.len())]))
                }))
            }
            "prefix" => cache.prefix(words).map(|present| present.to_string()),
            "keep" => cache.keep(number(0)).map(|keeps| if keeps { "yes" } else { "no" }.to_owned()),
            "mode" => {
                cache.set_mode(u32::from_str_radix(key, 8).ok());
                Ok(ok(()))
            }
            "allowed" => {
                let permissions = fs::metadata(self.place.join(key)).expect("stat").permissions();
                Ok(format!("{:o}", permissions.mode() & 0o7777))
            }
            "prefetch" => cache.prefetch(words).map(ok),
            "wait" => {
                let limit = Duration::from_millis(number(1) as u64);
                cache.wait_ready(key, limit).map(|view| found(view.as_ref()))
            }
            "range" => {
                let (range, limit) =
                    (number(1)..number(1) + number(2), Duration::from_millis(number(3) as u64));
                cache.wait_range(key, range, limit).map(|view| found(view.as_ref()))
            }
            "pin" => {
                let pin = match words[1] {
                    "hard" => Pin::Hard,
                    "soft" => Pin::Soft { ttl_s: None },
                    _ => Pin::None,
                };
                Ok(if cache.pin(key, pin)? { "ok" } else { "miss" }.to_owned())
            }
            "ready" => {
                let range = number(0)..number(0) + number(1);
                self.writer.as_mut().expect("an object was begun").ready(range).map(ok)
            }
            "create" => {
                self.writer = Some(cache.create(key, number(1))?);
                Ok(ok(()))
            }
            "fill" => {
                let writer = self.writer.as_mut().expect("an object was begun");
                let bytes = pattern(number(0), writer.len());
                writer.copy_from_slice(&bytes);
                Ok(ok(()))
            }
            "seal" => self.writer().seal().map(ok),
            "seal_first" => {
                let length = number(0);
                self.writer().seal_first(length).map(ok)
            }
            "drop" => {
                drop(self.writer());
                Ok(ok(()))
            }
            "many" => {
                let objects: Vec<(String, Vec<u8>)> =
                    (0..number(0)).map(|index| (format!("m{index}"), pattern(index, number(1)))).collect();
                let objects: Vec<(&str, &[u8])> =
                    objects.iter().map(|(key, bytes)| (&**key, &**bytes)).collect();
                cache.put_many(&objects).map(ok)
            }
            "hold" => {
                self.held = cache.get(key)?;
                Ok(found(self.held.as_ref()))
            }
            "held" => Ok(found(self.held.as_ref())),
            "place" => Ok(cache.get(key)?.map_or("miss".to_owned(), |view| {
                let is_there = view.is_mapped() == self.cache.is_fast();
                if is_there { "in-place" } else { "elsewhere" }.to_owned()
            })),
            "unlink" => {
                fs::remove_file(self.place.join(key)).expect("unlink");
                Ok(ok(()))
            }
            "anew" => {
                words.iter().for_each(|key| fs::remove_file(self.place.join(key)).expect("unlink"));
                fs::remove_dir(&self.place).expect("rmdir");
                fs::create_dir(&self.place).expect("mkdir");
                Ok(ok(()))
            }
            "give_way" => {
                fs::rename(&self.place, self.place.with_extension("old")).expect("rename");
                fs::create_dir(&self.place).expect("mkdir");
                Ok(ok(()))
            }
            _ => Ok("no such operation".to_owned()),
        }
    }
}

/// Runs the cases of a table, each in its directory below `root`. Returns the table with the results.
pub(super) fn run(root: &Path, table: &Path) -> String {
    let table = fs::read_to_string(table).expect("the table");
    let (mut text, mut driver) = (String::new(), None);
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(case) = line.strip_prefix("case ") {
            driver = Some(Driver::new(root.join(case)));
            let _ = writeln!(text, "{line}");
            continue;
        }
        let operation = line.split(" = ").next().unwrap_or(line);
        let words: Vec<&str> = operation.split(' ').collect();
        let driver = driver.as_mut().expect("a case comes first");
        let result =
            driver.run(words[0], &words[1..]).unwrap_or_else(|error| format!("error {}", error.errno()));
        let _ = writeln!(text, "{operation} = {result}");
    }
    text
}
