//! The calls that programs and operators make, as [`System`] has them.

use std::time::Duration;

use nix::errno::Errno;
use tidefs::datapath::{AttributeChange, Datapath, Error, Fate, Kind, OpenOptions, Page, Paged, SizeChange};
use tidefs::namespace::{Cookie, nanos_of};
use tidefs_engine::time::Clock as _;
use tidefs_engine::types::ByteCount;

use super::{Logic, caller, errno};
use crate::system::{Books, Change, Facts, Open, Reason, Space, System, Token, WATCHER};

impl System for Logic {
    fn open(&mut self, who: usize, path: &str, options: Open) -> Result<Token, Errno> {
        let wanted = OpenOptions {
            read: options.read,
            write: options.write,
            truncate: options.truncate,
            exclusive: options.exclusive,
            ..OpenOptions::default()
        };
        let (parent, name) = self.parent(who, path)?;
        match self.lookup(who, parent, name) {
            Err(Errno::ENOENT) if options.create => {}
            Err(error) => return Err(error),
            Ok(_) if options.create && options.exclusive => return Err(Errno::EEXIST),
            Ok((_, Kind::Directory, _)) => return Err(Errno::EISDIR),
            Ok(_) => {
                let open = |datapath: &Datapath, ino| datapath.open(&caller(who), ino, wanted);
                let opened = self.retried_on(who, path, !wanted.wants_nothing(), open);
                match opened {
                    Ok(opened) => {
                        let token = self.note(opened.handle, opened.ino);
                        return Ok(self.done(token));
                    }
                    // Gone since the look-up, by the eviction that this very open asked for.
                    Err(Errno::ENOENT) if options.create => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let token = self.create_or_open(who, parent, name, wanted)?;
        Ok(self.done(token))
    }

    fn inode(&mut self, path: &str) -> Option<u64> {
        self.resolve(WATCHER, path).ok().map(|ino| ino.0)
    }

    fn close(&mut self, who: usize, token: Token) {
        self.flush(who, token);
        let (handle, _) = self.handle(token);
        self.datapath().release(handle);
        self.handles.remove(&token);
        self.done(());
    }

    fn flush(&mut self, who: usize, token: Token) {
        let (handle, _) = self.handle(token);
        let told = self.datapath().flush(&caller(who), handle);
        // What finds no room as an object is dropped at its release.
        let is_known = matches!(told, Ok(()) | Err(Error::OverQuota { .. } | Error::NothingEvictable { .. }));
        assert!(is_known, "{told:?}");
    }

    fn write(&mut self, _who: usize, token: Token, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.datapath().write(self.handle(token).0, offset, bytes).map_err(errno)
    }

    fn read(&mut self, _who: usize, token: Token, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0xa5; length];
        let count = self.datapath().read(self.handle(token).0, offset, &mut bytes).map_err(errno)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    fn resize(&mut self, who: usize, token: Token, change: Change) -> Result<(), Errno> {
        let (handle, ino) = self.handle(token);
        let through = Some(handle);
        let outcome = match change {
            Change::Set(length) => {
                let size = Some(ByteCount(length));
                let change = AttributeChange { size, through, ..AttributeChange::default() };
                self.datapath().setattr(&caller(who), ino, &change).map(drop)
            }
            Change::Allocate { offset, length, keep_size } => {
                let (offset, length) = (ByteCount(offset), ByteCount(length));
                let change = SizeChange::Allocate { offset, length, keep_size };
                self.datapath().change_size(&caller(who), ino, through, change)
            }
            Change::Punch { offset, length } => {
                let change = SizeChange::Punch { offset: ByteCount(offset), length: ByteCount(length) };
                self.datapath().change_size(&caller(who), ino, through, change)
            }
        };
        outcome.map_err(errno)
    }

    fn can_allocate(&self, _who: usize) -> bool {
        true
    }

    fn truncate(&mut self, who: usize, path: &str, length: u64) -> Result<(), Errno> {
        let change = AttributeChange { size: Some(ByteCount(length)), ..AttributeChange::default() };
        let cut = |datapath: &Datapath, ino| datapath.setattr(&caller(who), ino, &change).map(drop);
        let outcome = self.retried_on(who, path, length > 0, cut);
        self.done(outcome)
    }

    fn rename(&mut self, who: usize, from: &str, to: &str, keep: bool) -> Result<(), Errno> {
        let (parent, name) = self.parent(who, from)?;
        let (new_parent, new_name) = self.parent(who, to)?;
        let moved = self.lookup(who, parent, name)?;
        // What the kernel refuses before it asks.
        if to.strip_prefix(from).is_some_and(|below| below.starts_with('/')) {
            return Err(Errno::EINVAL);
        }
        if let Ok((target, kind, _)) = self.lookup(who, new_parent, new_name) {
            match (moved.1, kind) {
                _ if keep => return Err(Errno::EEXIST),
                _ if target == moved.0 => return Ok(()),
                (Kind::Directory, Kind::File) => return Err(Errno::ENOTDIR),
                (Kind::File, Kind::Directory) => return Err(Errno::EISDIR),
                _ => {}
            }
        }
        let (source, target) = ((parent, name.as_bytes()), (new_parent, new_name.as_bytes()));
        if let Some(away) = self.datapath().must_load_child(source.0, source.1) {
            self.load(away);
        }
        let renamed = self.datapath().rename_for_members(&caller(who), source, target, keep).map_err(errno);
        let outcome = renamed.map(|left| self.left = left);
        self.done(outcome)
    }

    fn unlink(&mut self, who: usize, path: &str) -> Result<(), Errno> {
        let (parent, name) = self.parent(who, path)?;
        let outcome = self.datapath().unlink(&caller(who), parent, name.as_bytes()).map_err(errno);
        self.done(outcome)
    }

    fn mkdir(&mut self, who: usize, path: &str) -> Result<(), Errno> {
        let (parent, name) = self.parent(who, path)?;
        let stat =
            self.datapath().make_directory(&caller(who), parent, name.as_bytes(), 0o755).map_err(errno)?;
        *self.references.entry(stat.ino).or_default() += 1;
        self.done(());
        Ok(())
    }

    fn rmdir(&mut self, who: usize, path: &str) -> Result<(), Errno> {
        let (parent, name) = self.parent(who, path)?;
        let outcome = self.datapath().remove_directory(parent, name.as_bytes()).map_err(errno);
        self.done(outcome)
    }

    fn stat(&mut self, who: usize, path: &str) -> Result<Facts, Errno> {
        let (parent, name) = self.parent(who, path)?;
        let facts = self.lookup(who, parent, name).map(|(_, _, facts)| facts);
        self.done(facts)
    }

    fn list(&mut self, who: usize, path: &str) -> Result<Vec<String>, Errno> {
        let directory = self.resolve(who, path)?;
        let (mut names, mut cookie) = (Vec::new(), Cookie::START);
        loop {
            // In pieces, as the kernel asks.
            let before = names.len();
            let page =
                Page { caller: caller(who), directory, after: cookie, holds: false, asked_at_ms: None };
            let paged = self
                .datapath()
                .list(&page, |entry| {
                    if names.len() == before + 3 {
                        return false;
                    }
                    names.push(String::from_utf8_lossy(entry.name.as_bytes()).into_owned());
                    cookie = entry.cookie;
                    true
                })
                .map_err(errno)?;
            assert_eq!(paged, Paged::Done, "a listing waits though it was told not to");
            if names.len() == before {
                break;
            }
        }
        names.sort();
        Ok(self.done(names))
    }

    fn chmod(&mut self, who: usize, path: &str, mode: u32) -> Result<(), Errno> {
        let change = AttributeChange { mode: Some(mode), ..AttributeChange::default() };
        self.retried(who, path, |datapath, ino| datapath.setattr(&caller(who), ino, &change).map(drop))
    }

    fn utimens(&mut self, who: usize, path: &str, mtime_ns: i64) -> Result<(), Errno> {
        let change = AttributeChange { mtime_ns: Some(mtime_ns), ..AttributeChange::default() };
        self.retried(who, path, |datapath, ino| datapath.setattr(&caller(who), ino, &change).map(drop))
    }

    fn policy(&mut self, who: usize, path: &str, key: &str, value: Option<&str>) -> Result<(), Errno> {
        let name = format!("user.tidefs.{key}");
        let outcome = self.retried(who, path, |datapath, ino| match value {
            Some(value) => datapath.set_attribute(ino, name.as_bytes(), value.as_bytes(), None),
            None => datapath.remove_attribute(ino, name.as_bytes()),
        });
        self.done(outcome)
    }

    fn drop_caches(&mut self) {
        self.forget_closed();
    }

    fn advance(&mut self, by: Duration, expires: bool) {
        self.clock.advance(by);
        if expires {
            self.datapath().expire();
        }
    }

    fn restart(&mut self) {
        self.references.clear();
        self.handles.clear();
        self.datapath = None;
        self.start();
    }

    fn space(&mut self, path: &str) -> Space {
        let ino = self.resolve(WATCHER, path).expect("it exists");
        let space = self.datapath().statfs(ino).expect("it answers");
        self.done(self.without_disk(Space { capacity: space.capacity.get(), free: space.free.get() }))
    }

    fn now_ns(&self) -> i64 {
        self.keep_up();
        nanos_of(self.clock.wall())
    }

    fn reason(&self, path: &str) -> Option<Reason> {
        Some(match self.datapath().fate(path.as_bytes()) {
            Fate::Evicted { .. } => Reason::Evicted,
            Fate::Expired { .. } => Reason::Expired,
            _ => Reason::Other,
        })
    }

    fn check_tables(&self) {
        self.datapath().check_charges();
        self.datapath().check_domains();
        self.datapath().check_unverified();
    }

    fn books(&self) -> Option<Books> {
        let overview = self.datapath().overview().expect("the tier answers");
        Some(Books {
            objects: overview.objects,
            sealed_bytes: overview.sealed_bytes.get(),
            unsealed: overview.unsealed_files,
            used: overview.usage.used.get(),
            evictions: self.datapath().telemetry().evictions.get(),
            discarded: self.datapath().telemetry().discarded_writes.get(),
        })
    }
}
