//! Writes to a port that takes a datagram at a time.

use std::os::unix::net::UnixDatagram;

use super::*;

/// A datagram is what a virtio port takes in one write.
fn pipe() -> (Pipe, UnixDatagram) {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    let mut pipe = Pipe::new(ours.into());
    pipe.begin(7);
    (pipe, theirs)
}

/// The frames of each write.
fn writes(port: &UnixDatagram) -> Vec<Vec<(u8, u32, usize)>> {
    let mut space = vec![0; 100_000];
    let mut writes = Vec::new();
    while let Ok(count) = port.recv(&mut space) {
        let (mut at, mut frames) = (0, Vec::new());
        while at < count {
            let header = Header::decode(space[at..count].first_chunk().unwrap());
            at += HEADER_BYTES + header.length as usize;
            frames.push((header.kind, header.stream, header.length as usize));
        }
        assert!(
            at == count && count <= WRITE_BYTES,
            "half a frame is written"
        );
        writes.push(frames);
    }
    writes
}

#[test]
fn every_write_has_whole_frames() {
    let (mut pipe, port) = pipe();
    let fill = |count: usize| {
        move |space: &mut [u8]| -> Result<Option<usize>, ()> { Ok(Some(count.min(space.len()))) }
    };
    pipe.push(frames::OPEN, 1, b"request");
    assert_eq!(
        pipe.push_read(frames::DATA, 1, usize::MAX, fill(usize::MAX)),
        Ok(Some(MAX_DATA))
    );
    assert_eq!(pipe.push_read(frames::DATA, 2, 100, fill(70)), Ok(Some(70)));
    assert_eq!(pipe.push_read(frames::DATA, 2, 100, |_| Err(())), Err(()));
    assert_eq!(
        pipe.push_read(frames::DATA, 2, 100, |_| Ok::<_, ()>(None)),
        Ok(None)
    );
    assert_eq!(pipe.push_read(frames::DATA, 2, 100, fill(0)), Ok(Some(0)));
    pipe.push(frames::END, 2, b"end");
    assert!(!pipe.flush());
    let data = |stream, length| (frames::DATA, stream, length);
    assert_eq!(
        writes(&port),
        [
            vec![(frames::OPEN, 1, 7)],
            vec![data(1, MAX_DATA)],
            vec![data(2, 70), (frames::END, 2, 3)],
        ]
    );
}

#[test]
fn a_full_port_gets_the_rest_in_order_and_a_new_epoch_nothing_of_it() {
    let (mut pipe, port) = pipe();
    let mut pushed = 0;
    while pipe.has_room() {
        pushed += 1;
        pipe.push(frames::DATA, pushed, &[0; 10_000]);
        pipe.flush();
    }
    assert!(pipe.flush(), "epoll has to report room");
    let mut seen = Vec::new();
    while seen.len() < pushed as usize {
        seen.extend(writes(&port).concat());
        pipe.ready(false, true);
        pipe.flush();
    }
    assert!(seen.iter().map(|frame| frame.1).eq(1..=pushed));
    while !pipe.flush() {
        pipe.push(frames::DATA, 1, &[0; 10_000]);
    }
    writes(&port);
    pipe.begin(8);
    pipe.ready(false, true);
    assert!(!pipe.flush());
    assert_eq!(writes(&port).len(), 0);
}
