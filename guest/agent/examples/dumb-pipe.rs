//! The baseline of bench/files.ts: process 1 of a VM that only moves bytes between the agent's port and a file. It has no
//! frames, no credit, no threads and no other client, so it shows the cost of port and disk alone.
//!
//! ```text
//!   's'                        → '.'          all written bytes are on the disk (also: is it running?)
//!   'w' size u64 LE, bytes …   → '.'          into the file
//!   'r' size u64 LE            → bytes …      out of it
//! ```

use std::fs::File;
use std::io::{Read, Result, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use capsule_agent::boot;

const FILE: &str = "/root/file";
const CHUNK_BYTES: usize = 65_536;

fn main() {
    let mut port = Port(File::from(blocking(boot::boot().agent)));
    loop {
        if let Err(error) = serve(&mut port) {
            eprintln!("dumb-pipe: {error}");
        }
    }
}

fn serve(port: &mut Port) -> Result<()> {
    let mut verb = [0];
    port.fill(&mut verb)?;
    match verb[0] {
        b'w' => {
            let size = port.size()?;
            receive(port, size)?;
        }
        b'r' => {
            let size = port.size()?;
            return send(port, size);
        }
        // SAFETY: plain call.
        _ => unsafe { libc::sync() },
    }
    port.0.write_all(b".")
}

/// In whole chunks: the port gives at most a page at once, and file systems are faster with longer writes.
fn receive(port: &mut Port, mut left: u64) -> Result<()> {
    let mut file = File::create(FILE)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    while left > 0 {
        let length = left.min(CHUNK_BYTES as u64) as usize;
        port.fill(&mut chunk[..length])?;
        file.write_all(&chunk[..length])?;
        left -= length as u64;
    }
    Ok(())
}

fn send(port: &mut Port, mut left: u64) -> Result<()> {
    let mut file = File::open(FILE)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    while left > 0 {
        let length = left.min(CHUNK_BYTES as u64) as usize;
        file.read_exact(&mut chunk[..length])?;
        port.0.write_all(&chunk[..length])?;
        left -= length as u64;
    }
    Ok(())
}

struct Port(File);

impl Port {
    /// Without a host the port reads as end of file, and is read again.
    fn fill(&mut self, mut space: &mut [u8]) -> Result<()> {
        while !space.is_empty() {
            match self.0.read(space)? {
                0 => std::thread::sleep(Duration::from_millis(1)),
                count => space = &mut space[count..],
            }
        }
        Ok(())
    }

    fn size(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

fn blocking(port: OwnedFd) -> OwnedFd {
    // SAFETY: plain call. The only status flag set is O_NONBLOCK.
    unsafe { libc::fcntl(port.as_raw_fd(), libc::F_SETFL, 0) };
    port
}
