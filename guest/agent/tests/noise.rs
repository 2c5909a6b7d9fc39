//! Random bytes and nearly valid frames against all code that reads the pipe. The seed is printed; `SEED=… cargo test`
//! repeats a run.

mod random;

use capsule_agent::frames::*;
use capsule_agent::outbox::Outbox;
use capsule_agent::protocol::*;
use capsule_agent::record::{Reader, Writer, END_MARK};
use capsule_agent::stream::{Dropped, Role};
use capsule_agent::streams::Streams;
use capsule_agent::wake::Wake;
use random::Random;

const INPUTS: usize = 100_000;

/// Feeds the bytes in random pieces. Returns kind, epoch, stream and payload of each frame.
fn feed(
    parser: &mut Parser,
    mut bytes: &[u8],
    random: &mut Random,
) -> Vec<(u8, u16, u32, Vec<u8>)> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let space = parser.space();
        assert!(!space.is_empty());
        let count = (1 + random.below(70_000)).min(space.len()).min(bytes.len());
        space[..count].copy_from_slice(&bytes[..count]);
        parser.filled(count);
        bytes = &bytes[count..];
        while let Some(frame) = parser.next() {
            assert!(frame.kind != 0 && frame.payload.len() <= MAX_PAYLOAD_BYTES);
            frames.push((
                frame.kind,
                frame.epoch,
                frame.stream,
                frame.payload.to_vec(),
            ));
        }
    }
    frames
}

fn hello(nonce: &[u8]) -> Vec<u8> {
    let payload = Writer::new()
        .str(MAGIC)
        .raw(nonce)
        .u16(VERSIONS.max)
        .finish();
    let header = Header {
        kind: HELLO,
        flags: 0,
        epoch: 7,
        stream: 0,
        length: payload.len() as u32,
    };
    [header.encode().as_slice(), &payload].concat()
}

#[test]
fn after_noise_and_padding_a_hello_is_parsed() {
    let mut random = Random::seeded("padding");
    for _ in 0..INPUTS {
        let mut parser = Parser::default();
        let length = random.below(300);
        let noise = random.bytes(length);
        feed(&mut parser, &noise, &mut random);
        let mut hello_bytes = vec![0; HEADER_BYTES + MAX_PAYLOAD_BYTES];
        hello_bytes.extend(hello(&[9; NONCE_BYTES]));
        let frames = feed(&mut parser, &hello_bytes, &mut random);
        let (kind, epoch, _, payload) = frames.last().unwrap();
        assert_eq!((*kind, *epoch), (HELLO, 7), "after {noise:?}");
        assert_eq!(read_hello(payload).unwrap().nonce, [9; NONCE_BYTES]);
    }
}

#[test]
fn half_a_data_frame_is_forgotten_with_its_host() {
    let mut random = Random::seeded("half");
    let header = Header {
        kind: DATA,
        flags: 0,
        epoch: 7,
        stream: 3,
        length: 300,
    };
    let frame = [header.encode().as_slice(), &[b'x'; 300]].concat();
    for cut in 1..frame.len() {
        let mut parser = Parser::default();
        assert!(feed(&mut parser, &frame[..cut], &mut random).is_empty());
        parser.forget_half_data();
        let mut hello_bytes = vec![0; HEADER_BYTES + MAX_PAYLOAD_BYTES];
        hello_bytes.extend(hello(&[9; NONCE_BYTES]));
        let frames = feed(&mut parser, &hello_bytes, &mut random);
        assert_eq!((frames.len(), frames[0].0), (1, HELLO), "cut at {cut}");
    }
}

#[test]
fn frames_are_parsed_from_pieces_of_any_size() {
    let mut random = Random::seeded("pieces");
    for _ in 0..INPUTS {
        let mut bytes = Vec::new();
        let mut sent = Vec::new();
        for _ in 0..random.below(8) {
            bytes.extend(vec![0; random.below(20)]);
            let length = match random.below(6) {
                0 => MAX_PAYLOAD_BYTES - random.below(2),
                _ => random.below(400),
            };
            let payload = random.bytes(length);
            let (kind, epoch, stream) = (
                1 + random.below(255) as u8,
                random.next() as u16,
                random.next() as u32,
            );
            let header = Header {
                kind,
                flags: random.next() as u8,
                epoch,
                stream,
                length: length as u32,
            };
            bytes.extend(header.encode());
            bytes.extend(&payload);
            sent.push((kind, epoch, stream, payload));
        }
        assert_eq!(feed(&mut Parser::default(), &bytes, &mut random), sent);
    }
}

#[test]
fn random_records_are_decoded_or_refused() {
    let mut random = Random::seeded("records");
    let mut decoded = 0;
    for _ in 0..3 * INPUTS {
        let length = random.below(90);
        let mut bytes = random.bytes(length);
        if random.below(2) == 0 {
            bytes.push(END_MARK);
        }
        let mut results = [false; 5];
        results[0] = read_hello(&bytes).is_ok();
        let mut fields = Reader::new(&bytes);
        results[1] = Command::read(&mut fields).is_ok() && fields.finish().is_ok();
        let mut fields = Reader::new(&bytes);
        results[2] = Selector::read(&mut fields).is_ok() && fields.finish().is_ok();
        let mut fields = Reader::new(&bytes);
        results[3] = Wake::read(&mut fields).is_ok() && fields.finish().is_ok();
        let mut fields = Reader::new(&bytes);
        results[4] = fields.map().is_ok() && fields.list().is_ok() && fields.finish().is_ok();
        decoded += results.iter().filter(|&&is_ok| is_ok).count();
    }
    assert!(decoded > 0, "the noise is too far from valid records");
}

#[test]
fn streams_stay_within_credit_and_lose_nothing() {
    let mut random = Random::seeded("streams");
    for _ in 0..200 {
        let mut streams = Streams::default();
        streams.begin_epoch(1);
        streams.open(5);
        let mut expected = Vec::new();
        let mut received: Vec<u8> = Vec::new();
        let mut credit = WINDOW_BYTES as usize;
        let mut parser = Parser::default();
        for _ in 0..60 {
            let length = random.below(50_000);
            let bytes = random.bytes(length);
            streams.data(5, channel::MAIN, &bytes);
            expected.extend(bytes);
            if random.below(3) == 0 {
                let grant = random.below(1 + WINDOW_BYTES as usize - credit);
                streams.credit(5, grant as u32);
                credit += grant;
            }
            streams.pump();
            for (_, _, _, payload) in feed(&mut parser, &drain(streams.outbox()), &mut random) {
                credit = credit
                    .checked_sub(payload.len())
                    .expect("beyond the credit");
                received.extend(payload);
            }
        }
        assert_eq!(received, expected[..received.len()]);
        assert_eq!(received.len() + streams.queued(5), expected.len());
        let dropped = streams.cancel(5).unwrap();
        assert_eq!(dropped.unsent, expected[received.len()..]);
    }
}

#[test]
fn a_new_epoch_returns_unsent_data() {
    let mut streams = Streams::default();
    streams.begin_epoch(1);
    for id in [5, 7] {
        streams.open(id);
        streams.set_role(id, Role::Terminal(id));
    }
    streams.data(5, channel::MAIN, b"received ");
    drain(streams.outbox());
    streams.data(5, channel::MAIN, b"framed ");
    streams.data(5, channel::MAIN, &[b'x'; WINDOW_BYTES as usize]);
    streams.data(7, channel::MAIN, b"last words");
    streams.result(7, empty());
    streams.pump();
    let mut expected = b"framed ".to_vec();
    expected.extend([b'x'; WINDOW_BYTES as usize]);
    let back = streams.begin_epoch(2);
    assert!(back.contains(&dropped_terminal(5, 5, &expected)));
    assert!(back.contains(&dropped_terminal(7, 7, b"last words")));
    assert!(streams.begin_epoch(3).is_empty());
}

#[test]
fn a_stream_number_may_be_used_again_within_an_epoch() {
    let mut streams = Streams::default();
    streams.begin_epoch(1);
    let terminal = |streams: &mut Streams| {
        streams.open(5);
        streams.set_role(5, Role::Terminal(1));
    };
    terminal(&mut streams);
    streams.data(5, channel::MAIN, b"of the first one");
    assert!(streams.receive(5, WINDOW_BYTES as usize));
    streams.cancel(5);
    terminal(&mut streams);
    streams.data(5, channel::MAIN, b"short");
    streams.consumed(5, WINDOW_BYTES as usize);
    assert!(streams.receive(5, WINDOW_BYTES as usize));
    assert!(!streams.receive(5, 1), "beyond the window");
    let back = streams.begin_epoch(2);
    assert_eq!(back, [dropped_terminal(5, 1, b"short")]);
}

fn dropped_terminal(id: u32, key: u32, unsent: &[u8]) -> Dropped {
    Dropped {
        id,
        role: Role::Terminal(key),
        unsent: unsent.to_vec(),
    }
}

fn drain(outbox: &mut Outbox) -> Vec<u8> {
    let bytes = outbox.bytes().to_vec();
    outbox.clear();
    bytes
}
