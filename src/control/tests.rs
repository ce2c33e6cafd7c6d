//! The admin socket as a caller sees it: a fake daemon behind a real unix socket, requests written by hand.

use std::io::{Read as _, Write as _};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tidefs_control_api::{
    AddDiskRequest, ApiError, DisksChanged, DrainDiskRequest, DrainPhase, DrainProgress, DrainRequest,
    DrainStatus, EffectiveConfig, ErrorCode, EvictProgress, EvictTarget, Evicted, KeyPath, ListEntry,
    ListPart, ListQuery, ListSummary, ObjectStat, PinRequest, Pinned, RemoveDiskRequest, Status, Verdict,
    VerifyProgress, VerifyRequest, VerifySummary, Where, WhereKind, Why, routes,
};
use tidefs_engine::types::{ByteCount, ObjectCount};

use super::{ControlServer, Operations, StartError};

/// Knows one object, `ns/key`; verification ends when it is told to, or when nobody listens.
#[derive(Debug, Default)]
struct FakeDaemon {
    verify_may_end: AtomicBool,
    verify_was_broken_off: AtomicBool,
    list_was_broken_off_after: AtomicU64,
    evictions_broken_off: AtomicU64,
}

impl Operations for FakeDaemon {
    fn status(&self) -> Result<Status, ApiError> {
        Ok(Status { pid: 7, objects: ObjectCount(1), ..Status::default() })
    }

    fn list(
        &self,
        query: &ListQuery,
        tell: &mut dyn FnMut(ListPart) -> ControlFlow<()>,
    ) -> Result<ListSummary, ApiError> {
        let entry = ListEntry { path: KeyPath::from_bytes(b"ns/key"), ..ListEntry::default() };
        let limit = query.limit.unwrap_or(u64::MAX);
        for told in 0..limit {
            if tell(ListPart { entries: vec![entry.clone()] }).is_break() {
                self.list_was_broken_off_after.store(told, Ordering::SeqCst);
                break;
            }
        }
        Ok(ListSummary { total: ObjectCount(9) })
    }

    fn stat(&self, path: &KeyPath) -> Result<ObjectStat, ApiError> {
        match path.as_str() {
            "ns/key" => Ok(ObjectStat { path: path.clone(), size: ByteCount(5), ..ObjectStat::default() }),
            "panic" => panic!("an operation may panic without taking the server along"),
            _ => Err(ApiError::no_object(path)),
        }
    }

    fn why(&self, path: &KeyPath) -> Result<Why, ApiError> {
        Ok(Why::new(path.clone(), Verdict::NeverWritten { since: None, of_several_hosts: false }))
    }

    fn locate(&self, path: &KeyPath) -> Result<Where, ApiError> {
        Ok(Where {
            path: path.clone(),
            kind: WhereKind::Absent,
            size: None,
            copies: Vec::new(),
            replicas: None,
            is_short: false,
        })
    }

    fn drain(&self, request: &DrainRequest) -> Result<DrainStatus, ApiError> {
        Ok(DrainStatus { member: request.member.clone(), phase: DrainPhase::Idle, ..DrainStatus::default() })
    }

    fn evict(
        &self,
        target: &EvictTarget,
        force: bool,
        progress: &mut dyn FnMut(EvictProgress) -> ControlFlow<()>,
    ) -> Result<Evicted, ApiError> {
        match target {
            // It goes on for ever.
            EvictTarget::Bytes(ByteCount(u64::MAX)) => {
                while progress(EvictProgress::default()).is_continue() {
                    std::thread::sleep(Duration::from_millis(2));
                }
                self.evictions_broken_off.fetch_add(1, Ordering::SeqCst);
                Ok(Evicted::default())
            }
            EvictTarget::Bytes(bytes) => {
                Ok(Evicted { bytes: *bytes, objects: ObjectCount(u64::from(force)), ..Evicted::default() })
            }
            EvictTarget::Path(path) => Err(ApiError::no_object(path)),
            EvictTarget::Pattern(_) => Ok(Evicted::default()),
        }
    }

    fn pin(&self, request: &PinRequest) -> Result<Pinned, ApiError> {
        Ok(Pinned { path: request.path.clone(), pin: request.pin, ttl_left_s: request.ttl_s })
    }

    fn verify(
        &self,
        _request: &VerifyRequest,
        progress: &mut dyn FnMut(VerifyProgress) -> ControlFlow<()>,
    ) -> Result<VerifySummary, ApiError> {
        let mut checked = 0;
        loop {
            checked += 1;
            let so_far = VerifyProgress { checked: ObjectCount(checked), ..VerifyProgress::default() };
            if progress(so_far).is_break() {
                self.verify_was_broken_off.store(true, Ordering::SeqCst);
                return Ok(VerifySummary::default());
            }
            if self.verify_may_end.load(Ordering::SeqCst) {
                return Ok(VerifySummary { checked: ObjectCount(checked), ..VerifySummary::default() });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn add_disk(&self, request: &AddDiskRequest) -> Result<DisksChanged, ApiError> {
        Ok(DisksChanged { disks: vec![request.path.clone()], ..DisksChanged::default() })
    }

    fn remove_disk(&self, _request: &RemoveDiskRequest) -> Result<DisksChanged, ApiError> {
        Ok(DisksChanged::default())
    }

    fn drain_disk(
        &self,
        _request: &DrainDiskRequest,
        progress: &mut dyn FnMut(DrainProgress) -> ControlFlow<()>,
    ) -> Result<DrainProgress, ApiError> {
        let _ = progress(DrainProgress::default());
        Ok(DrainProgress::default())
    }

    fn config(&self) -> Result<EffectiveConfig, ApiError> {
        Ok(EffectiveConfig::default())
    }

    fn metrics(&self) -> Result<String, ApiError> {
        Ok("tidefs_objects 1\n# EOF\n".to_owned())
    }
}

struct Fixture {
    _folder: TempDir,
    socket: PathBuf,
    daemon: Arc<FakeDaemon>,
    server: ControlServer,
}

fn serve() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("instance/control.sock");
    let daemon = Arc::new(FakeDaemon::default());
    let server = ControlServer::start(&socket, Arc::clone(&daemon) as Arc<dyn Operations>).unwrap();
    Fixture { _folder: folder, socket, daemon, server }
}

impl Fixture {
    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends bytes and returns what comes back until the server hangs up.
    fn raw(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        String::from_utf8(reply).unwrap()
    }

    /// Status and body of one request.
    fn ask(&self, method: &str, target: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        let reply = self.raw(format!("{head}{body}").as_bytes());
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// The lines of an answer that is streamed.
    fn lines(&self, method: &str, target: &str, body: &str) -> Vec<Value> {
        let length = body.len();
        // Of HTTP/1.0, so that they come as they are.
        let head = format!("{method} {target} HTTP/1.0\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        let reply = self.raw(format!("{head}{body}").as_bytes());
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.0 200") && head.contains("application/x-ndjson"), "{head}");
        body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn json(&self, method: &str, target: &str, body: &str) -> (u16, Value) {
        let (status, body) = self.ask(method, target, body);
        (status, serde_json::from_str(&body).unwrap())
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_route_answers_with_its_type() {
    let fixture = serve();
    assert_eq!(fixture.json("GET", routes::STATUS, "").1["pid"], 7);
    let list = fixture.lines("GET", "/v1/list?path=ns&sort=name&limit=2", "");
    assert_eq!(list.len(), 3, "{list:?}");
    assert_eq!((&list[0]["event"], &list[0]["entries"][0]["path"]), (&json!("progress"), &json!("ns/key")));
    assert_eq!(list[2], json!({"event": "summary", "total": 9}));
    assert_eq!(fixture.json("GET", "/v1/stat?path=ns/key", "").1["size"], 5);
    assert_eq!(fixture.json("GET", "/v1/why?path=x%20y", "").1["path"], "x y");
    assert_eq!(
        fixture.lines("POST", routes::EVICT, r#"{"bytes":4096,"force":true}"#),
        [
            json!({"event": "summary", "objects": 1, "bytes": 4096, "held_bytes": 0, "elsewhere_bytes": 0, "missing_bytes": 0, "skipped_objects": 0, "skipped": []})
        ]
    );
    let (_, pinned) = fixture.json("POST", routes::PIN, r#"{"path":"ns/key","pin":"soft","ttl_s":60}"#);
    assert_eq!(pinned, json!({"path": "ns/key", "pin": "soft", "ttl_left_s": 60}));
    assert_eq!(fixture.json("GET", routes::CONFIG, "").1, json!({"entries": []}));
    assert_eq!(fixture.ask("GET", routes::METRICS, ""), (200, "tidefs_objects 1\n# EOF\n".to_owned()));
    assert_eq!(fixture.ask("GET", routes::HEALTH, ""), (200, "ok\n".to_owned()));
}

#[test]
fn what_is_not_understood_is_refused_and_named() {
    let fixture = serve();
    for (method, target, body, status, named) in [
        ("GET", "/v1/list?srot=heat", "", 400, "srot"),
        ("GET", "/v1/list?sort=warmth", "", 400, "warmth"),
        ("GET", "/v1/list?limit=few", "", 400, "invalid digit"),
        ("GET", "/v1/list?cursor=c", "", 400, "cursor"),
        ("GET", "/v1/status?verbose=1", "", 400, "verbose"),
        ("GET", "/v1/stat", "", 400, "path"),
        ("GET", "/v1/stat?path=a/../b", "", 400, "`..`"),
        ("GET", "/v1/why?path=a%5Cq", "", 400, "x5c"),
        ("GET", "/v1/nothing", "", 404, "/v1/nothing"),
        ("GET", "/v2/status", "", 404, "/v2/status"),
        ("POST", "/v1/status", "", 405, "POST"),
        ("POST", "/v1/pin", "", 400, "body"),
        ("POST", "/v1/pin", "{\"path\":\"a\"}", 400, "pin"),
        ("POST", "/v1/pin", "{\"path\":\"a\",\"pin\":\"soft\",\"ttl_s\":0}", 400, "zero"),
        ("POST", "/v1/pin", "{\"path\":\"a\",\"pin\":\"hard\",\"ttl_s\":3}", 400, "only a soft pin"),
        ("POST", "/v1/evict", "{\"path\":\"a\",\"bytes\":1}", 400, "exactly one"),
        ("POST", "/v1/evict", "{\"pattern\":\"/mnt/kv/*\"}", 400, "no slash"),
        ("POST", "/v1/evict", "{\"path\":\"..\"}", 400, "`..`"),
        ("POST", "/v1/evict", "{\"pth\":\"a\"}", 400, "pth"),
        ("POST", "/v1/evict", "{\"path\":\"ns/other\"}", 404, "ns/other"),
        ("POST", "/v1/evict", "\u{0}\u{1}", 400, "body"),
        ("POST", "/v1/verify", "{\"path\":\"a//b\"}", 400, "empty"),
    ] {
        let (got, error) = fixture.json(method, target, body);
        let text = error["error"].to_string();
        assert!(got == status && text.contains(named), "{method} {target} {body}: {got} {text}");
    }
}

#[test]
fn a_key_that_is_not_here_is_404_with_the_next_step() {
    let fixture = serve();
    let (status, error) = fixture.json("GET", "/v1/stat?path=ns/other", "");
    assert_eq!((status, &error["error"]["code"]), (404, &json!("not_found")));
    assert_eq!(error["error"]["next_step"], "`tidefs why ns/other` tells what became of it");
}

#[test]
fn a_route_that_is_not_there_is_not_told_of_like_a_key() {
    let fixture = serve();
    let (status, error) = fixture.json("GET", "/v1/later?path=ns/key", "");
    assert_eq!((status, &error["error"]["code"]), (404, &json!("no_route")));
}

#[test]
fn garbage_gets_400_or_nothing_and_the_next_caller_is_served() {
    let fixture = serve();
    for garbage in
        [&b"\x00\xff\xfe\r\n\r\n"[..], b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\nhello\r\n\r\n"]
    {
        let reply = fixture.raw(garbage);
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 400"), "{reply}");
    }
    // One that hangs up in the middle of a body.
    let mut stream = fixture.connect();
    stream.write_all(b"POST /v1/evict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{").unwrap();
    drop(stream);
    assert_eq!(fixture.ask("GET", routes::HEALTH, "").0, 200);
}

#[test]
fn a_body_beyond_the_limit_is_refused() {
    let fixture = serve();
    let body = format!("{{\"pattern\":\"{}\"}}", "a".repeat(super::handlers::BODY_MAX));
    let (status, error) = fixture.json("POST", routes::EVICT, &body);
    assert_eq!((status, &error["error"]["code"]), (413, &json!("too_large")));
}

#[test]
fn a_panic_in_an_operation_costs_that_request_alone() {
    let fixture = serve();
    let (status, error) = fixture.json("GET", "/v1/stat?path=panic", "");
    assert_eq!((status, &error["error"]["code"]), (500, &json!("internal")));
    assert_eq!(fixture.ask("GET", routes::HEALTH, "").0, 200);
}

#[test]
fn a_verification_streams_lines_and_ends_with_a_summary() {
    let fixture = serve();
    fixture.daemon.verify_may_end.store(true, Ordering::SeqCst);
    let lines = fixture.lines("POST", routes::VERIFY, "{}");
    assert_eq!(lines.first().unwrap()["event"], "progress");
    assert_eq!(lines.last().unwrap()["event"], "summary");
}

#[test]
fn a_list_goes_at_the_pace_of_its_reader_and_ends_with_it() {
    let fixture = serve();
    let mut reader = fixture.connect();
    reader.write_all(b"GET /v1/list HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    reader.read_exact(&mut [0; 64]).unwrap();
    assert_eq!(fixture.ask("GET", routes::HEALTH, "").0, 200, "others are served meanwhile");
    drop(reader);
    let told = &fixture.daemon.list_was_broken_off_after;
    wait_until("the break", || told.load(Ordering::SeqCst) > 0);
    let told = told.load(Ordering::SeqCst);
    assert!(told < 20_000, "{told} objects were told to nobody");
}

#[test]
fn status_is_answered_while_as_many_evictions_go_on_as_may_and_each_ends_with_its_caller() {
    let fixture = serve();
    let body = format!("{{\"bytes\":{}}}", u64::MAX);
    let request =
        format!("POST /v1/evict HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let callers: Vec<UnixStream> = std::iter::repeat_with(|| fixture.connect()).take(20).collect();
    for mut caller in &callers {
        caller.write_all(request.as_bytes()).unwrap();
    }
    let mut first = &callers[0];
    first.read_exact(&mut [0; 64]).unwrap();
    let asked = Instant::now();
    assert_eq!(fixture.json("GET", routes::STATUS, "").1["pid"], 7);
    assert!(asked.elapsed() < Duration::from_secs(5), "status waits for evictions: {:?}", asked.elapsed());
    drop(callers);
    // Those that still waited for their turn left before it came, or ended at once.
    wait_until("their end", || fixture.daemon.evictions_broken_off.load(Ordering::SeqCst) >= 4);
    let evicted = fixture.lines("POST", routes::EVICT, r#"{"bytes":4096}"#);
    assert_eq!(evicted[0]["bytes"], 4096, "the next one has its turn");
}

#[test]
fn one_verification_at_a_time_and_it_ends_with_its_caller() {
    let fixture = serve();
    let mut first = fixture.connect();
    first.write_all(b"POST /v1/verify HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}").unwrap();
    let mut some = [0; 64];
    first.read_exact(&mut some).unwrap();
    let (status, error) = fixture.json("POST", routes::VERIFY, "{}");
    assert_eq!((status, &error["error"]["code"]), (409, &json!("conflict")));
    assert_eq!(fixture.ask("GET", routes::HEALTH, "").0, 200, "others are served meanwhile");
    drop(first);
    wait_until("the break", || fixture.daemon.verify_was_broken_off.load(Ordering::SeqCst));
    fixture.daemon.verify_may_end.store(true, Ordering::SeqCst);
    wait_until("a second turn", || fixture.ask("POST", routes::VERIFY, "{}").0 == 200);
}

#[test]
fn folder_and_socket_are_closed_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let instance = folder.path().join("instance");
    std::fs::create_dir(&instance).unwrap();
    std::fs::set_permissions(&instance, std::fs::Permissions::from_mode(0o755)).unwrap();
    let socket = instance.join("control.sock");
    let _server = ControlServer::start(&socket, Arc::new(FakeDaemon::default())).unwrap();
    let mode = |path: &PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&instance), mode(&socket)), (0o700, 0o600));
}

#[test]
fn a_dead_daemons_socket_is_replaced_and_a_live_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists(), "a dead daemon leaves its socket file");
    let server = ControlServer::start(&socket, Arc::new(FakeDaemon::default())).unwrap();
    let error = ControlServer::start(&socket, Arc::new(FakeDaemon::default())).unwrap_err();
    assert!(matches!(error, StartError::InUse { .. }), "{error}");
    server.stop();
    assert!(!socket.exists(), "a stopped server leaves nothing");
    std::fs::write(&socket, "precious").unwrap();
    let error = ControlServer::start(&socket, Arc::new(FakeDaemon::default())).unwrap_err();
    assert!(matches!(error, StartError::InTheWay { .. }), "{error}");
}

#[test]
fn a_socket_that_cannot_be_made_is_told_with_its_cause() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let socket = file.path().join("instance/control.sock");
    let error = ControlServer::start(&socket, Arc::new(FakeDaemon::default())).unwrap_err().to_string();
    assert_eq!(error.matches("Not a directory").count(), 1, "{error}");
}

#[test]
fn a_stop_waits_for_nobody_who_only_keeps_a_connection() {
    let fixture = serve();
    let mut idle = fixture.connect();
    let mut verifying = fixture.connect();
    verifying.write_all(b"POST /v1/verify HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}").unwrap();
    verifying.read_exact(&mut [0; 64]).unwrap();
    let start = Instant::now();
    fixture.server.stop();
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0, "the connection was closed");
    assert!(fixture.daemon.verify_was_broken_off.load(Ordering::SeqCst));
}

#[test]
fn a_caller_without_the_right_is_told_403_whatever_it_asks() {
    // The socket's mode keeps such callers out already; the router behind it is asked here without a socket.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (method, target) in [("GET", routes::STATUS), ("POST", routes::EVICT), ("GET", routes::HEALTH)] {
        let request =
            axum::http::Request::builder().method(method).uri(target).body(axum::body::Body::empty());
        let service = hyper_util::service::TowerToHyperService::new(super::handlers::refusing_router());
        let reply = hyper::service::Service::call(&service, request.unwrap());
        assert_eq!(runtime.block_on(reply).unwrap().status().as_u16(), ErrorCode::Forbidden.http_status());
    }
}
