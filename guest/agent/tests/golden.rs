//! The frames of golden/frames.txt, which the daemon's tests read too: the agent decodes the host's frames, and encodes its
//! own byte for byte as in the file.

use std::collections::BTreeMap;
use std::path::Path;

use capsule_agent::attributes::Attributes;
use capsule_agent::files::entries::entry;
use capsule_agent::files::reading::Range;
use capsule_agent::files::request::FileRequest;
use capsule_agent::files::watching::changes::{record, Kind};
use capsule_agent::files::watching::watching_event;
use capsule_agent::frames::*;
use capsule_agent::ports::port_record;
use capsule_agent::protocol::*;
use capsule_agent::record::{Malformed, Reader, Writer};
use capsule_agent::request::{Exec, Request};
use capsule_agent::wake::Wake;

const EPOCH: u16 = 0xb70c;

fn golden() -> BTreeMap<String, Vec<u8>> {
    let text = include_str!("../golden/frames.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, hex)| (name.to_string(), unhex(hex)))
        .collect()
}

fn unhex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .chars()
        .map(|digit| digit.to_digit(16).unwrap() as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        kind,
        flags,
        epoch: EPOCH,
        stream,
        length: payload.len() as u32,
    };
    [&header.encode(), payload].concat()
}

/// Kind, flags, stream and payload of a golden frame.
fn payload(frames: &BTreeMap<String, Vec<u8>>, name: &str) -> (u8, u8, u32, Vec<u8>) {
    let bytes = &frames[name];
    let mut parser = Parser::default();
    parser.space()[..bytes.len()].copy_from_slice(bytes);
    parser.filled(bytes.len());
    let frame = parser.next().unwrap();
    assert_eq!(frame.epoch, EPOCH, "{name}");
    (
        frame.kind,
        frame.flags,
        frame.stream,
        frame.payload.to_vec(),
    )
}

fn changes() -> Vec<u8> {
    let (top, file) = (b"/root/a", b"/root/a/b");
    let records = [
        record(Kind::Create, file, None),
        record(Kind::Write, file, None),
        record(Kind::Rename, file, Some(b"/root/a/c\xff")),
        record(Kind::Chmod, top, None),
        record(Kind::Overflow, b"", None),
        record(Kind::Remove, top, None),
    ];
    records.concat()
}

fn ports() -> Vec<u8> {
    let ssh = port_record(22, "::", 4242, b"/usr/sbin/sshd");
    [ssh, port_record(8080, "127.0.0.1", 0, b"")].concat()
}

#[test]
fn every_frame_is_one_frame() {
    let frames = golden();
    assert!(frames.len() > 40);
    for name in frames.keys() {
        payload(&frames, name);
    }
}

#[test]
fn the_agents_frames_are_the_golden_ones() {
    let nonce: Vec<u8> = (0xa0..=0xaf).collect();
    let welcome = |has_verbs| {
        let welcome = Welcome {
            nonce: &nonce,
            version: 1,
            is_awake: false,
            pid: 1,
            has_verbs,
        };
        welcome.record()
    };
    let exit = |code, signal, duration_us| Exit {
        code,
        signal,
        duration_us,
    };
    let notice = |reboot| Writer::new().u16(notice::HALTING).u8(reboot).finish();
    let not_found = Failure::new(Code::NotFound, "/etc/passwd does not exist");
    let sent = [
        ("welcome", frame(WELCOME, 0, 0, &welcome(false))),
        ("welcome_dial", frame(WELCOME, 0, 0, &welcome(true))),
        ("result_empty", frame(RESULT, 0, 1, &empty())),
        (
            "result_usage",
            frame(
                RESULT,
                0,
                6,
                &Writer::new()
                    .u64(1_000_000_000)
                    .u64(400_000_000)
                    .u64(4_000_000_000)
                    .u64(1_500_000_000)
                    .finish(),
            ),
        ),
        (
            "result_woken",
            frame(
                RESULT,
                0,
                2,
                &woken(&["/etc/hosts cannot be written: Read-only file system".to_string()]),
            ),
        ),
        (
            "result_frozen",
            frame(RESULT, 0, 3, &Writer::new().u8(1).finish()),
        ),
        (
            "event_started",
            frame(EVENT, 0, 5, &started_event(4242, "proc-0011aabb")),
        ),
        (
            "event_position",
            frame(EVENT, 0, 27, &position_event(5_000_000_000)),
        ),
        (
            "event_kept",
            frame(EVENT, 0, 28, &kept_event(1_048_576, 4_294_967_296)),
        ),
        (
            "event_watching",
            frame(EVENT, 0, 38, &watching_event(b"/root/a")),
        ),
        ("event_dialled", frame(EVENT, 0, 39, &dialled_event())),
        (
            "result_ended",
            frame(RESULT, 0, 39, &Writer::new().u8(0).finish()),
        ),
        (
            "result_reset",
            frame(RESULT, 0, 39, &Writer::new().u8(1).finish()),
        ),
        ("data_ports", frame(DATA, channel::MAIN, 40, &ports())),
        ("data_changes", frame(DATA, channel::MAIN, 38, &changes())),
        (
            "data_stdout",
            frame(DATA, channel::STDOUT, 5, "grüße".as_bytes()),
        ),
        ("data_stderr", frame(DATA, channel::STDERR, 5, b"\0\xff\n")),
        (
            "window",
            frame(WINDOW, 0, 5, &Writer::new().u32(65_536).finish()),
        ),
        (
            "result_exit",
            frame(RESULT, 0, 5, &exit(3, 0, 1_234_567).record()),
        ),
        (
            "result_exit_killed",
            frame(RESULT, 0, 5, &exit(137, 9, 30_000_000).record()),
        ),
        (
            "result_started",
            frame(RESULT, 0, 6, &started(4243, "worker").finish()),
        ),
        (
            "result_count",
            frame(RESULT, 0, 17, &Writer::new().u32(2).finish()),
        ),
        (
            "result_bytes",
            frame(RESULT, 0, 15, &Writer::new().u64(5_000_000_000).finish()),
        ),
        ("fail", frame(FAIL, 0, 14, &not_found.record())),
        ("notice_power_off", frame(NOTICE, 0, 0, &notice(0))),
        ("notice_reboot", frame(NOTICE, 0, 0, &notice(1))),
    ];
    let frames = golden();
    for (name, bytes) in sent {
        assert_eq!(bytes, frames[name], "{name}");
    }
}

fn read_verb(fields: &mut Reader) -> Verb {
    Verb::from_number(fields.u16().unwrap()).unwrap()
}

/// The verb, the command, and the fields after it.
fn read_command(bytes: &[u8]) -> (Verb, Command<'_>, Vec<u16>) {
    let mut fields = Reader::new(bytes);
    let verb = read_verb(&mut fields);
    let command = Command::read(&mut fields).unwrap();
    let rest = match verb {
        Verb::Exec | Verb::ExecStdin => vec![u16::from(fields.u8().unwrap())],
        _ => vec![fields.u16().unwrap(), fields.u16().unwrap()],
    };
    fields.finish().unwrap();
    (verb, command, rest)
}

#[test]
fn the_hosts_frames_are_decoded() {
    let frames = golden();
    let (_, _, _, bytes) = payload(&frames, "hello");
    let nonce: Vec<u8> = (0xa0..=0xaf).collect();
    let hello = read_hello(&bytes).unwrap();
    assert_eq!((hello.nonce.to_vec(), hello.version), (nonce, 1));
    let (_, flags, _, same) = payload(&frames, "hello_verbs");
    assert_eq!((flags, same), (LIST_VERBS, bytes));

    let request = |name: &str| {
        let (kind, _, _, bytes) = payload(&frames, name);
        assert_eq!(kind, OPEN);
        bytes
    };
    let bytes = request("open_exec_foreground");
    let (verb, echo, mode) = read_command(&bytes);
    assert_eq!((verb, mode), (Verb::Exec, vec![0]));
    assert_eq!(echo.cmd, b"/bin/echo");
    assert_eq!(echo.args, [b"-n", "grüße".as_bytes(), b""]);
    let bytes = request("open_exec_background");
    let (_, env, mode) = read_command(&bytes);
    assert_eq!(mode, [1]);
    let (cwd, user, tag) = (
        b"/tmp".as_slice(),
        b"nobody".as_slice(),
        b"worker".as_slice(),
    );
    assert_eq!(
        (env.cwd, env.user, env.tag),
        (Some(cwd), Some(user), Some(tag))
    );
    let envs: [(&[u8], &[u8]); 2] = [(b"A", b"1"), (b"EMPTY", b"")];
    assert_eq!(env.envs, envs);
    let bytes = request("open_pty");
    let (verb, _, size) = read_command(&bytes);
    assert_eq!((verb, size), (Verb::Pty, vec![120, 40]));

    let bytes = request("open_exec_stdin");
    let (verb, cat, mode) = read_command(&bytes);
    assert_eq!(
        (verb, cat.cmd, mode),
        (Verb::ExecStdin, b"/bin/cat".as_slice(), vec![0])
    );
    let bytes = request("open_exec_stdin_background");
    let (verb, job, mode) = read_command(&bytes);
    let tag = Some(b"job".as_slice());
    assert_eq!((verb, job.tag, mode), (Verb::ExecStdin, tag, vec![1]));

    let tag = |tag: &[u8]| Selector::Tag(tag.to_vec());
    for (name, verb, expected) in [
        ("open_attach_pid", Verb::Attach, Selector::Pid(4242)),
        ("open_attach_tag", Verb::Attach, tag(b"proc-0011aabb")),
        ("open_input_pid", Verb::Input, Selector::Pid(4242)),
        ("open_input_tag", Verb::Input, tag(b"job")),
    ] {
        let (_, _, _, bytes) = payload(&frames, name);
        let mut fields = Reader::new(&bytes);
        assert_eq!(read_verb(&mut fields), verb);
        assert_eq!(Selector::read(&mut fields), Ok(expected));
        fields.finish().unwrap();
    }

    let (_, _, _, bytes) = payload(&frames, "open_await");
    let mut fields = Reader::new(&bytes);
    assert_eq!(read_verb(&mut fields), Verb::Await);
    assert_eq!(
        Selector::read(&mut fields),
        Ok(Selector::Tag(b"worker".to_vec()))
    );
    fields.finish().unwrap();

    let (_, _, stream, bytes) = payload(&frames, "open_wake");
    let mut fields = Reader::new(&bytes);
    assert_eq!((stream, read_verb(&mut fields)), (2, Verb::Wake));
    Wake::read(&mut fields).unwrap();
    fields.finish().unwrap();

    let (_, flags, _, mut whole) = payload(&frames, "open_more");
    let (_, last, _, rest) = payload(&frames, "open_rest");
    assert_eq!((flags, last), (MORE, 0));
    whole.extend(rest);
    let mut fields = Reader::new(&whole);
    assert_eq!(
        (read_verb(&mut fields), fields.str()),
        (Verb::Read, Ok(b"/in two parts".as_slice()))
    );
    fields.finish().unwrap();
}

#[test]
fn a_halt_is_decoded() {
    let (_, _, _, bytes) = payload(&golden(), "open_halt");
    let mut fields = Reader::new(&bytes);
    assert_eq!(read_verb(&mut fields), Verb::Halt);
    assert_eq!(fields.u32(), Ok(9_500));
    fields.finish().unwrap();
}

#[test]
fn usage_and_growth_are_decoded() {
    let frames = golden();
    let (_, _, _, usage) = payload(&frames, "open_usage");
    let mut fields = Reader::new(&usage);
    assert_eq!(read_verb(&mut fields), Verb::Usage);
    fields.finish().unwrap();
    let (_, _, _, grow) = payload(&frames, "open_grow");
    let mut fields = Reader::new(&grow);
    assert_eq!(read_verb(&mut fields), Verb::Grow);
    assert_eq!(fields.u64(), Ok(8_589_934_592));
    fields.finish().unwrap();
}

#[test]
fn commands_as_a_user_are_decoded() {
    let frames = golden();
    for (name, user, has_stdin, survives, mode) in [
        ("open_exec_as", Some(b"1000".as_slice()), false, false, 0),
        (
            "open_exec_as_all",
            Some(b"builder".as_slice()),
            true,
            true,
            2,
        ),
        ("open_exec_as_default", None, false, true, 0),
    ] {
        let (_, _, _, bytes) = payload(&frames, name);
        let mut fields = Reader::new(&bytes);
        assert_eq!(read_verb(&mut fields), Verb::ExecAs);
        let exec = Exec::read_as(&mut fields).unwrap();
        fields.finish().unwrap();
        assert_eq!(exec.command.user, user, "{name}");
        assert_eq!(
            (exec.has_stdin, exec.survives, exec.mode),
            (has_stdin, survives, mode),
            "{name}"
        );
    }
    let (_, _, _, bytes) = payload(&frames, "open_exec_as_all");
    let read = |bytes: &[u8]| Exec::read_as(&mut Reader::new(&bytes[2..])).map(|exec| exec.mode);
    for (at, value) in [(2, 4), (2, 0x80), (bytes.len() - 2, 3)] {
        let mut unknown = bytes.clone();
        unknown[at] = value;
        assert!(read(&unknown).is_err(), "{value} at {at}");
    }
    let as_user = |user: Option<&str>| {
        Writer::new()
            .u16(Verb::ExecAs.number())
            .u8(0)
            .str("builder")
            .str("true")
            .u32(0)
            .u32(0)
            .optional(None::<&str>)
            .optional(user)
            .optional(None::<&str>)
            .u8(0)
            .finish()
    };
    assert_eq!(read(&as_user(None)), Ok(0));
    assert_eq!(read(&as_user(Some("root"))), Err(Malformed), "two users");
}

#[test]
fn requests_for_ports_are_decoded() {
    let frames = golden();
    for (name, expected) in [("open_dial", Some(8_080)), ("open_ports", None)] {
        let bytes = payload(&frames, name).3;
        let mut fields = Reader::new(&bytes);
        let verb = read_verb(&mut fields);
        let port = match Request::read(verb, fields) {
            Ok(Request::Dial { port }) => Some(port),
            Ok(Request::Ports) => None,
            _ => panic!("{name}"),
        };
        assert_eq!(port, expected);
    }
}

#[test]
fn requests_for_kept_output_are_decoded() {
    let frames = golden();
    let fields_of = |name: &str| payload(&frames, name).3;
    let tag = || Selector::Tag(b"job".to_vec());
    for (name, expected) in [
        ("open_attach_from_start", (tag(), Position::Start)),
        ("open_attach_from_now", (Selector::Pid(4242), Position::Now)),
        (
            "open_attach_from_screen",
            (Selector::Tag(b"pty-ccdd2233".to_vec()), Position::Screen),
        ),
        (
            "open_attach_from_offset",
            (tag(), Position::Offset(5_000_000_000)),
        ),
    ] {
        let bytes = fields_of(name);
        let mut fields = Reader::new(&bytes);
        let verb = read_verb(&mut fields);
        let Ok(Request::AttachFrom { selector, position }) = Request::read(verb, fields) else {
            panic!("{name}");
        };
        assert_eq!((selector, position), expected);
    }
    for (name, expected) in [
        ("open_logs", (tag(), channel::MAIN, None)),
        (
            "open_logs_tail",
            (Selector::Pid(4242), channel::STDERR, Some(10)),
        ),
    ] {
        let bytes = fields_of(name);
        let mut fields = Reader::new(&bytes);
        let verb = read_verb(&mut fields);
        let Ok(Request::Logs {
            selector,
            channel,
            tail,
        }) = Request::read(verb, fields)
        else {
            panic!("{name}");
        };
        assert_eq!((selector, channel, tail), expected);
    }
}

#[test]
fn file_requests_are_decoded() {
    let frames = golden();
    let read = |name: &str| {
        let (_, _, _, bytes) = payload(&frames, name);
        let mut fields = Reader::new(&bytes);
        let verb = read_verb(&mut fields);
        let request = FileRequest::read(verb, &mut fields);
        fields.finish().unwrap();
        format!("{:?}", request.unwrap())
    };
    let path = format!("path: {:?}", b"/root/a");
    assert_eq!(read("open_stat"), format!("Stat {{ {path} }}"));
    assert_eq!(
        read("open_watch"),
        format!("Watch {{ {path}, is_recursive: true, limit: 8192 }}")
    );
    let to = format!("from: {:?}, to: {:?}", b"/root/a", b"/tmp/b");
    assert_eq!(
        read("open_move"),
        format!("Move {{ {to}, overwrites: true }}")
    );
    assert_eq!(
        read("open_chmod"),
        format!("Chmod {{ {path}, mode: 2541, is_recursive: false }}")
    );
    let owner = format!("owner: Some({:?}), group: None", b"builder");
    assert_eq!(
        read("open_chown"),
        format!("Chown {{ {path}, {owner}, is_recursive: true }}")
    );
    let file = format!("path: {:?}", b"/root/a file");
    assert_eq!(
        read("open_write_as"),
        format!("Write {{ {file}, has_attributes: true }}")
    );
    let passwd = format!("path: {:?}", b"/etc/passwd");
    for (name, range) in [
        ("open_read_range", Range::From { first: 5, last: 9 }),
        (
            "open_read_rest",
            Range::From {
                first: 5,
                last: u64::MAX,
            },
        ),
        ("open_read_last", Range::Last(7)),
    ] {
        let expected = format!("Read {{ {passwd}, range: Some({range:?}) }}");
        assert_eq!(read(name), expected);
    }
    let attributes = |name: &str| {
        let (_, _, _, bytes) = payload(&frames, name);
        let mut fields = Reader::new(&bytes);
        assert_eq!(fields.u16(), Ok(event::ATTRIBUTES));
        let attributes = Attributes::read(&mut fields).unwrap();
        fields.finish().unwrap();
        attributes
    };
    let all = Attributes {
        has_parents: true,
        mode: Some(0o640),
        owner: Some(b"1000".to_vec()),
    };
    assert_eq!(attributes("event_attributes"), all);
    assert_eq!(attributes("event_attributes_none"), Attributes::default());
}

#[test]
fn a_real_entry_has_the_shape_of_the_golden_one() {
    let frames = golden();
    let (_, _, _, bytes) = payload(&frames, "result_entry");
    let shape = |bytes: &[u8]| {
        let mut fields = Reader::new(bytes);
        let name = fields.str().unwrap().to_vec();
        let path = fields.str().unwrap().to_vec();
        let kind = fields.u8().unwrap();
        fields.u64().unwrap();
        let format = fields.u32().unwrap() & 0o170000;
        let (owner, _) = (fields.str().unwrap().to_vec(), fields.str().unwrap());
        fields.u64().unwrap();
        assert_eq!(fields.optional(), Ok(None));
        fields.finish().unwrap();
        (name, path, kind, format, owner)
    };
    let golden_shape = (
        b"b".to_vec(),
        b"/root/a/b".to_vec(),
        1,
        0o040000,
        b"root".to_vec(),
    );
    assert_eq!(shape(&bytes), golden_shape);
    let meta = std::fs::metadata("/proc").unwrap();
    let names = capsule_agent::accounts::names();
    let real = entry(Path::new("/proc"), &meta, &names).finish();
    let real_shape = (
        b"proc".to_vec(),
        b"/proc".to_vec(),
        1,
        0o040000,
        b"root".to_vec(),
    );
    assert_eq!(shape(&real), real_shape);
}
