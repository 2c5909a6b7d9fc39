//! Questions as programs send them, and what comes of them.

use super::*;

/// A question as programs send it: its name in labels.
pub fn message(name: &[u8], kind: u16, class: u16, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    bytes[11] = u8::from(!rest.is_empty());
    bytes.extend_from_slice(name);
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&class.to_be_bytes());
    bytes.extend_from_slice(rest);
    bytes
}

const NAME: &[u8] = b"\x07eXample\x03com\x00";
/// 1 232 bytes, no options.
const EDNS: &[u8] = &[0, 0, 41, 4, 0xd0, 0, 0, 0, 0, 0, 0];

fn a(ttl: u32, data: &[u8]) -> Record<'_> {
    Record { kind: 1, ttl, data }
}

#[test]
fn a_question_is_read_and_answered_in_its_own_spelling() {
    let asked = message(NAME, 1, 1, &[]);
    let question = read(&asked).unwrap();
    assert_eq!(
        (&question.name[..], question.kind),
        (&b"example.com"[..], 1)
    );
    assert_eq!(question.udp_bytes(), 512);
    let answer = question.answer(0, &[a(300, &[93, 184, 216, 34])], 512);
    let mut expected = asked;
    expected[2..8].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1]);
    expected.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 93, 184, 216, 34]);
    assert_eq!(answer, expected);
    let none = question.answer(3, &[], 512);
    assert_eq!(none[2..4], [0x81, 0x83]);
    assert_eq!(question.answer(99, &[], 512)[3], 0x80 | SERVER_FAILURE);
}

#[test]
fn an_answer_that_does_not_fit_is_marked_and_empty() {
    let question = read(&message(NAME, 1, 1, EDNS)).unwrap();
    assert_eq!(question.udp_bytes(), 1_232);
    let data = [7u8; 4];
    let records: Vec<Record> = (0..200).map(|_| a(1, &data)).collect();
    let cut = question.answer(0, &records, question.udp_bytes());
    assert_eq!(cut[2..8], [0x83, 0x80, 0, 1, 0, 0]);
    assert_eq!(
        cut[cut.len() - 11..cut.len() - 8],
        [0, 0, 41],
        "with its own OPT record"
    );
    let whole = question.answer(0, &records, 65_535);
    assert_eq!(whole[2..8], [0x81, 0x80, 0, 1, 0, 200]);
    assert!(whole.len() > 3_200 && question.answer(0, &records[..60], 1_232).len() <= 1_232);
}

#[test]
fn the_root_is_a_name_and_odd_questions_are_refused() {
    assert_eq!(read(&message(&[0], 2, 1, &[])).unwrap().name, b"");
    let refusal = |message: &[u8]| match read(message) {
        Err(Odd::Refused(answer)) => (answer[..2].to_vec(), answer[3] & 15, answer.len()),
        other => panic!("{message:?}: {other:?}"),
    };
    let long: Vec<u8> = (0..5)
        .flat_map(|_| [&[63][..], &[b'a'; 63]].concat())
        .collect();
    let mut several = message(NAME, 1, 1, &[]);
    several[5] = 2;
    let mut update = message(NAME, 1, 1, &[]);
    update[2] = 0x28;
    for odd in [
        message(NAME, 1, 3, &[]),
        message(b"\x05a.b c\x00", 1, 1, &[]),
        message(b"\x01\xff\x00", 1, 1, &[]),
        message(b"\xc0\x0c", 1, 1, &[]),
        message(&[&long[..], &[0]].concat(), 1, 1, &[]),
        message(NAME, 1, 1, &[])[..20].to_vec(),
        several,
        update,
    ] {
        assert_eq!(refusal(&odd), (vec![0x12, 0x34], REFUSED, 12));
    }
    assert_eq!(read(&[0; 11]), Err(Odd::Silent));
    let mut answer = message(NAME, 1, 1, &[]);
    answer[2] |= 0x80;
    assert_eq!(read(&answer), Err(Odd::Silent), "an answer is not answered");
}

#[test]
fn any_bytes_are_a_question_or_odd() {
    let seed: [u8; 4] = crate::sys::random();
    let mut state = u32::from_ne_bytes(seed) | 1;
    println!("seed {state}");
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    for _ in 0..100_000 {
        let mut bytes = message(NAME, 1, 1, EDNS);
        for _ in 0..next() % 6 {
            let at = next() as usize % bytes.len();
            bytes[at] = next() as u8;
        }
        bytes.truncate(next() as usize % (bytes.len() + 1));
        if let Ok(question) = read(&bytes) {
            let data = vec![0; next() as usize % 70_000];
            let kept = &data[..data.len().min(60_000)];
            let answer = question.answer(next() as u8, &[a(0, kept)], question.udp_bytes());
            assert!(answer.len() <= question.udp_bytes());
        }
    }
}
