//! The frames of golden/net-frames.txt, which the relay's tests read too: the gateway decodes the relay's frames, and encodes
//! its own byte for byte as in the file.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use capsule_agent::frames::{self, Parser};
use capsule_agent::gateway::wire::{self, read_message, Answers, Message, Record, Refusal};

const EPOCH: u16 = 0xb70c;
const NONCE: [u8; 16] = [
    0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf,
];

fn golden() -> BTreeMap<&'static str, Vec<u8>> {
    let text = include_str!("../golden/net-frames.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let unhex = |hex: &str| -> Vec<u8> {
        let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digits).collect()
    };
    lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, hex)| (name, unhex(hex)))
        .collect()
}

/// Type, stream and payload.
fn parsed(bytes: &[u8]) -> (u8, u32, Vec<u8>) {
    let mut parser = Parser::default();
    parser.space()[..bytes.len()].copy_from_slice(bytes);
    parser.filled(bytes.len());
    let frame = parser.next().unwrap();
    assert_eq!((frame.epoch, frame.flags), (EPOCH, 0));
    (frame.kind, frame.stream, frame.payload.to_vec())
}

#[test]
fn the_gateways_frames_are_those_of_the_file() {
    let mut frames = golden();
    let mut expect = |name: &str, kind: u8, stream: u32, payload: Vec<u8>| {
        let header = wire::header(kind, EPOCH, stream, payload.len()).encode();
        let frame = frames.remove(name).unwrap();
        assert_eq!([&header, &payload[..]].concat(), frame, "{name}");
    };
    let address = Ipv4Addr::new(93, 184, 216, 34);
    expect("welcome", frames::WELCOME, 0, wire::welcome(&NONCE));
    expect("connect", frames::OPEN, 7, wire::connect(address, 443));
    expect("data", frames::DATA, 7, b"hello".to_vec());
    expect("end", frames::END, 7, wire::end(5));
    expect("window", frames::WINDOW, 7, wire::window(65_536));
    expect("reset", wire::RESET, 7, wire::reset());
    expect("resolve", frames::OPEN, 8, wire::resolve(b"example.com", 1));
    expect("resolve_root", frames::OPEN, 14, wire::resolve(b"", 2));
}

#[test]
fn the_relays_frames_are_understood() {
    let mut frames = golden();
    let (kind, stream, hello) = parsed(&frames.remove("hello").unwrap());
    assert_eq!((kind, stream), (frames::HELLO, 0));
    assert_eq!(wire::read_hello(&hello), Ok(NONCE));
    let a = |ttl, data| Record { kind: 1, ttl, data };
    let records = vec![a(300, &[93, 184, 216, 34][..]), a(60, &[93, 184, 216, 35])];
    let none = Answers {
        rcode: 3,
        records: vec![],
    };
    for (name, stream, message) in [
        ("opened", 7, Message::Opened),
        ("data", 7, Message::Data(b"hello")),
        ("end", 7, Message::End),
        ("window", 7, Message::Window(65_536)),
        ("reset", 7, Message::Reset),
        ("fail_refused", 9, Message::Fail(Refusal::Refused)),
        ("fail_denied", 10, Message::Fail(Refusal::Denied)),
        ("fail_unreachable", 11, Message::Fail(Refusal::Unreachable)),
        ("fail_timeout", 12, Message::Fail(Refusal::Unreachable)),
        (
            "answers",
            8,
            Message::Answers(Answers { rcode: 0, records }),
        ),
        ("no_answers", 14, Message::Answers(none)),
    ] {
        let (kind, number, payload) = parsed(&frames.remove(name).unwrap());
        assert_eq!(number, stream, "{name}");
        assert_eq!(read_message(kind, &payload), Ok(message), "{name}");
        if kind != frames::DATA {
            // Half a frame that the next relay's padding completes.
            let mut zeroed = payload.clone();
            zeroed[payload.len() / 2..].fill(0);
            assert!(read_message(kind, &zeroed).is_err(), "{name}");
        }
    }
    let left: Vec<_> = frames.into_keys().collect();
    assert_eq!(left, ["connect", "resolve", "resolve_root", "welcome"]);
}
