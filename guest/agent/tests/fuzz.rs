//! A live agent, and a host that sends mutated requests of every verb. The agent must answer in well-formed frames, accept
//! the next HELLO, and use little memory.
//!
//! The agent does what the requests ask for, so it runs in a sandbox: separate processes and network, and this machine's
//! files read-only. `CAPSULE_FUZZ=long` runs forty times as long. The input of a failure is left in a file whose name
//! is printed.

mod random;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Sender};
use std::time::{Duration, Instant};

use capsule_agent::frames::*;
use capsule_agent::protocol::*;
use capsule_agent::record::{Reader, Writer, END_MARK};
use random::Random;

const TIMEOUT: Duration = Duration::from_secs(120);
const MAX_RESIDENT_KIB: u64 = 64 * 1024;
const SEQUENCES_PER_AGENT: usize = 120;
const LAST_STREAM: u32 = 777;

/// A frame from the host, its epoch to be filled in.
#[derive(Clone)]
struct HostFrame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
    epoch_off: u16,
    length_off: u32,
}

impl HostFrame {
    /// Its header is consistent, so the parser stays in step whatever the content.
    fn is_a_frame(&self) -> bool {
        self.kind != 0 && self.length_off == 0 && self.payload.len() <= MAX_PAYLOAD_BYTES
    }
}

fn frame(kind: u8, stream: u32, payload: Vec<u8>) -> HostFrame {
    HostFrame {
        kind,
        flags: 0,
        stream,
        payload,
        epoch_off: 0,
        length_off: 0,
    }
}

fn open(stream: u32, verb: Verb, fields: impl Fn(Writer) -> Writer) -> HostFrame {
    frame(
        OPEN,
        stream,
        fields(Writer::new().u16(verb.number())).finish(),
    )
}

fn command(to: Writer, words: &[&str], tag: Option<&str>) -> Writer {
    to.str(words[0])
        .list(&words[1..])
        .u32(1)
        .str("A")
        .str("1")
        .optional(Some("/tmp"))
        .optional(None::<&str>)
        .optional(tag)
}

/// The frames of a correct host.
fn valid_frames() -> Vec<HostFrame> {
    let shell = ["sh", "-c", "echo out; echo err >&2; exit 3"];
    let total = |bytes: u64| Writer::new().u64(bytes).finish();
    let credit = |bytes: u32| Writer::new().u32(bytes).finish();
    let event = |kind: u16| Writer::new().u16(kind);
    vec![
        open(1, Verb::Probe, |to| to),
        open(2, Verb::Thaw, |to| to),
        open(3, Verb::Exec, |to| command(to, &shell, None).u8(0)),
        frame(EVENT, 3, event(event::STOP).finish()),
        open(4, Verb::Exec, |to| {
            command(to, &["sleep", "100"], Some("worker")).u8(1)
        }),
        open(5, Verb::Attach, |to| to.u8(1).str("worker")),
        open(22, Verb::AttachFrom, |to| {
            to.u8(1).str("worker").u8(0).u64(0)
        }),
        open(23, Verb::AttachFrom, |to| {
            to.u8(1).str("worker").u8(2).u64(3)
        }),
        open(24, Verb::Logs, |to| to.u8(1).str("worker").u8(0).u64(10)),
        open(6, Verb::Signal, |to| to.u8(1).str("worker").u8(9)),
        open(7, Verb::Signal, |to| to.u8(0).u32(4).u8(15)),
        open(8, Verb::Processes, |to| to),
        open(24, Verb::ListProcesses, |to| to),
        open(27, Verb::Usage, |to| to),
        open(28, Verb::Grow, |to| to.u64(1 << 33)),
        open(9, Verb::Pty, |to| {
            command(to, &["cat"], Some("pty-00000000")).u16(80).u16(24)
        }),
        frame(DATA, 9, b"typed\n".to_vec()),
        frame(EVENT, 9, event(event::RESIZE).u16(100).u16(40).finish()),
        frame(EVENT, 9, event(event::TAKEN).u64(3).finish()),
        frame(CANCEL, 9, empty()),
        open(10, Verb::Connect, |to| to.str("pty-00000000")),
        open(11, Verb::Read, |to| to.str("/usr/bin/env")),
        frame(WINDOW, 11, credit(262_144)),
        open(12, Verb::Write, |to| to.str("/tmp/file")),
        frame(DATA, 12, vec![7; 5_000]),
        frame(END, 12, total(5_000)),
        open(13, Verb::Write, |to| to.str("")),
        frame(DATA, 13, vec![7; 65_536]),
        frame(EVENT, 13, event(event::TARGET).str("/tmp/other").finish()),
        frame(END, 13, total(65_536)),
        open(14, Verb::List, |to| to.str("/etc").u32(2).u32(1_000)),
        open(15, Verb::Mkdir, |to| to.str("/tmp/a/b")),
        open(16, Verb::Remove, |to| to.str("/tmp/a")),
        open(22, Verb::Archive, |to| {
            to.list(&["/etc/passwd"]).optional(Some("/etc"))
        }),
        frame(WINDOW, 22, credit(262_144)),
        open(23, Verb::Extract, |to| to.str("/tmp")),
        frame(DATA, 23, vec![0; 1_024]),
        frame(END, 23, total(1_024)),
        open(25, Verb::Watch, |to| to.str("/tmp").u8(1).u32(1_000)),
        open(26, Verb::Watch, |to| to.str("/etc").u8(0).u32(1)),
        frame(CANCEL, 26, empty()),
        open(17, Verb::Wake, |to| {
            to.u64(1)
                .str([9; 32])
                .str("name")
                .str("0123456789abcdef0123456789abcdef")
        }),
        open(19, Verb::ExecStdin, |to| {
            command(to, &["cat"], Some("reader")).u8(1)
        }),
        open(20, Verb::Input, |to| to.u8(1).str("reader")),
        frame(DATA, 20, vec![7; 65_536]),
        frame(END, 20, total(65_536)),
        open(22, Verb::ExecAs, |to| {
            command(to.u8(0).str("nobody"), &shell, None).u8(0)
        }),
        open(23, Verb::ExecAs, |to| {
            command(to.u8(2).str(""), &shell, None).u8(1)
        }),
        open(21, Verb::ExecStdin, |to| command(to, &["cat"], None).u8(0)),
        frame(DATA, 21, b"read\n".to_vec()),
        frame(END, 21, total(5)),
        open(18, Verb::Freeze, |to| to),
        open(2, Verb::Thaw, |to| to),
    ]
}

fn sequence(valid_frames: &[HostFrame], random: &mut Random) -> Vec<HostFrame> {
    let mut frames: Vec<HostFrame> = match random.below(3) {
        0 => valid_frames.to_vec(),
        _ => (0..random.below(40))
            .map(|_| valid_frames[random.below(valid_frames.len())].clone())
            .collect(),
    };
    for _ in 0..random.below(8) {
        if frames.is_empty() {
            break;
        }
        let (at, other) = (random.below(frames.len()), random.below(frames.len()));
        match random.below(5) {
            0 => frames.swap(at, other),
            1 => drop(frames.remove(at)),
            2 => frames.insert(other, frames[at].clone()),
            _ => corrupt(&mut frames[at], random),
        }
    }
    frames
}

/// Makes one property of the frame wrong.
fn corrupt(frame: &mut HostFrame, random: &mut Random) {
    const LENGTHS: [u32; 8] = [
        0,
        1,
        65_535,
        65_536,
        262_144,
        0x7fff_ffff,
        0x8000_0000,
        u32::MAX,
    ];
    let bytes = &mut frame.payload;
    let at = random.below(bytes.len() + 1);
    match random.below(12) {
        0 => frame.kind = random.next() as u8,
        1 => frame.flags = random.next() as u8,
        2 => frame.stream = LENGTHS[random.below(LENGTHS.len())],
        3 => frame.stream = random.below(20) as u32,
        4 => frame.epoch_off = random.below(3) as u16,
        5 => frame.length_off = LENGTHS[random.below(LENGTHS.len())],
        6 => bytes.truncate(at),
        7 => {
            let more = random.below(100);
            bytes.splice(at..at, random.bytes(more));
        }
        8 if at + 4 <= bytes.len() => {
            let length = LENGTHS[random.below(LENGTHS.len())];
            bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
        }
        9 => *bytes = random.bytes(random_length(at, frame.kind)),
        _ if at < bytes.len() => bytes[at] = random.next() as u8,
        _ => {}
    }
}

fn random_length(at: usize, kind: u8) -> usize {
    if kind == DATA {
        MAX_PAYLOAD_BYTES
    } else {
        at
    }
}

fn encode(frames: &[HostFrame], epoch: u16) -> Vec<u8> {
    frames
        .iter()
        .flat_map(|frame| {
            let header = Header {
                kind: frame.kind,
                flags: frame.flags,
                epoch: epoch.wrapping_add(frame.epoch_off),
                stream: frame.stream,
                length: (frame.payload.len() as u32).wrapping_add(frame.length_off),
            };
            [header.encode().as_slice(), &frame.payload].concat()
        })
        .collect()
}

/// The agent's process and all its descendants.
struct Sandbox {
    process: Child,
    socket: PathBuf,
}

impl Sandbox {
    fn start(folder: &Path) -> Sandbox {
        let _ = std::fs::remove_dir_all(folder);
        std::fs::create_dir_all(folder).unwrap();
        let process = Command::new("bwrap")
            .args(["--unshare-all", "--die-with-parent", "--new-session"])
            .args(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"])
            .args(["--tmpfs", "/tmp", "--tmpfs", "/mnt", "--ro-bind"])
            .args([
                env!("CARGO_BIN_EXE_capsule-agent"),
                "/mnt/capsule-agent",
                "--bind",
            ])
            .args([folder.as_os_str(), "/mnt/sandbox".as_ref()])
            .args(["/mnt/capsule-agent", "--socket", "/mnt/sandbox/s"])
            .args(["--kept", "8388608"])
            .stdin(Stdio::null())
            .spawn()
            .expect("bwrap is what keeps the fuzzed agent off this machine");
        let socket = folder.join("s");
        let sandbox = Sandbox { process, socket };
        let began = Instant::now();
        while UnixStream::connect(&sandbox.socket).is_err() {
            assert!(began.elapsed() < TIMEOUT, "the agent does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        sandbox
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).expect("the agent is gone");
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// The agent itself: the innermost of bwrap's children.
    fn resident_kib(&self) -> u64 {
        let mut pid = self.process.id();
        loop {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
            if name.starts_with("capsule-agent") {
                break;
            }
            let children =
                std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
            pid = children.split_whitespace().next().unwrap().parse().unwrap();
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmHWM:"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Connects as a new host does, and reads up to the WELCOME.
fn handshake(stream: &mut UnixStream, epoch: u16, nonce: &[u8; NONCE_BYTES]) -> Parser {
    let payload = Writer::new()
        .str(MAGIC)
        .raw(nonce)
        .u16(VERSIONS.max)
        .finish();
    let mut hello = vec![0; HEADER_BYTES + MAX_PAYLOAD_BYTES];
    hello.extend(encode(&[frame(HELLO, 0, payload)], epoch));
    stream.write_all(&hello).unwrap();
    let mut parser = Parser::default();
    loop {
        let count = stream.read(parser.space()).expect("no WELCOME in time");
        assert!(count > 0, "the agent hung up on a HELLO");
        parser.filled(count);
        while let Some(frame) = parser.next() {
            if frame.kind == WELCOME && frame.epoch == epoch {
                assert_eq!(&frame.payload[..NONCE_BYTES], nonce);
                return parser;
            }
        }
    }
}

/// Checks every frame up to the end of the connection, and reports when the last probe is answered.
fn check_frames(
    mut stream: UnixStream,
    mut parser: Parser,
    epoch: u16,
    answered: Sender<()>,
) -> usize {
    let mut frames = 0;
    loop {
        while let Some(frame) = parser.next() {
            assert_eq!(frame.epoch, epoch, "a frame of {}", frame.kind);
            let is_well_formed = match frame.kind {
                DATA => !frame.payload.is_empty(),
                WELCOME | END | WINDOW | EVENT | RESULT | NOTICE => {
                    frame.payload.last() == Some(&END_MARK)
                }
                FAIL => {
                    let mut fields = Reader::new(frame.payload);
                    let is_text = [fields.str(), fields.str()]
                        .into_iter()
                        .all(|text| text.is_ok_and(|text| std::str::from_utf8(text).is_ok()));
                    is_text && fields.finish().is_ok()
                }
                _ => false,
            };
            assert!(is_well_formed, "kind {}: {:?}", frame.kind, frame.payload);
            if frame.kind == RESULT && frame.stream == LAST_STREAM {
                let _ = answered.send(());
            }
            frames += 1;
        }
        match stream.read(parser.space()) {
            Ok(0) => return frames,
            Ok(count) => parser.filled(count),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return frames,
            Err(error) => panic!("the agent neither sends nor hangs up: {error}"),
        }
    }
}

#[test]
fn an_agent_survives_any_sequence_of_frames() {
    let is_long = std::env::var("CAPSULE_FUZZ").is_ok_and(|form| form == "long");
    let least = Duration::from_secs(if is_long { 2_400 } else { 60 });
    let began = Instant::now();
    let mut random = Random::seeded("fuzz");
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{}", std::process::id()));
    let input = folder.with_extension("input");
    let valid_frames = valid_frames();
    let (mut agents, mut sent, mut received) = (0, 0, 0);
    while began.elapsed() < least {
        agents += 1;
        let sandbox = Sandbox::start(&folder);
        for _ in 0..SEQUENCES_PER_AGENT {
            let epoch = 1 + random.below(0xffff) as u16;
            let nonce: [u8; NONCE_BYTES] = std::array::from_fn(|_| random.next() as u8);
            let mut frames = sequence(&valid_frames, &mut random);
            let is_in_step = frames.iter().all(HostFrame::is_a_frame);
            frames.push(open(LAST_STREAM, Verb::Probe, |to| to));
            let bytes = encode(&frames, epoch);
            std::fs::write(&input, &bytes).unwrap();
            let mut stream = sandbox.connect();
            let parser = handshake(&mut stream, epoch, &nonce);
            let reader = stream.try_clone().unwrap();
            let (answered, answer) = channel();
            let checking =
                std::thread::spawn(move || check_frames(reader, parser, epoch, answered));
            let most = 1 + random.below(100_000);
            for piece in bytes.chunks(most) {
                stream.write_all(piece).expect("the agent does not read");
            }
            // The last frame is read whatever the others were.
            let is_answered = !is_in_step || answer.recv_timeout(TIMEOUT).is_ok();
            let _ = stream.shutdown(std::net::Shutdown::Write);
            received += checking
                .join()
                .unwrap_or_else(|_| panic!("see {}", input.display()));
            assert!(
                is_answered,
                "a probe is not answered, see {}",
                input.display()
            );
            sent += frames.len();
        }
        let kib = sandbox.resident_kib();
        assert!(kib < MAX_RESIDENT_KIB, "the agent has had {kib} KiB");
    }
    assert!(
        received > sent / 10,
        "{received} frames for {sent}: the sequences are too far from valid ones"
    );
    let _ = writeln!(
        std::io::stderr(),
        "fuzz: {agents} agents, {sent} frames sent, {received} received"
    );
    let _ = std::fs::remove_dir_all(&folder);
    let _ = std::fs::remove_file(&input);
}
