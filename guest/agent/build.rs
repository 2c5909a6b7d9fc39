//! Leaves the tables for unwinding out of the program: a panic aborts, and the guest keeps the file in memory, 130 KiB of them.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    println!("cargo:rerun-if-changed=unwind.ld");
    println!("cargo:rustc-link-arg-bins=-Wl,--no-eh-frame-hdr,-T,{folder}/unwind.ld");
}
