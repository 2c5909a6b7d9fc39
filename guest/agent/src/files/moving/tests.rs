//! A move whose source is changed while it is copied, without a second mount.

use std::fs;

use super::*;

/// The failure of the copy of a source of 3 MiB that this changes after the first step, and what is in the directory then.
fn failure_of_changed(name: &str, change: fn(&Path)) -> (Failure, Vec<String>) {
    let dir = std::env::temp_dir().join(format!("capsule-move-{name}-{}", std::process::id()));
    fs::create_dir_all(dir.join("from")).unwrap();
    for part in ["a", "b", "c"] {
        fs::write(dir.join("from").join(part), vec![1; 1024 * 1024]).unwrap();
    }
    // Older than any change that this test makes.
    let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    let opened = fs::File::open(dir.join("from")).unwrap();
    opened.set_times(times).unwrap();
    let path = |name: &str| bytes(&dir.join(name)).to_vec();
    let mut moving = Moving::new(&path("from"), &path("to"), false).unwrap();
    let source = moving.source().unwrap();
    let target = moving.target(&source).unwrap();
    let flags = libc::RENAME_NOREPLACE;
    moving.begin_copy(source, target, flags).unwrap();
    assert!(matches!(moving.next_step(), Ok(Next::Continue)));
    change(&dir);
    let failure = loop {
        match moving.next_step() {
            Ok(next) => assert!(matches!(next, Next::Continue), "{name}: it is moved"),
            Err(failure) => break failure,
        }
    };
    drop(moving);
    let entries = fs::read_dir(&dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    fs::remove_dir_all(&dir).unwrap();
    (failure, names)
}

#[test]
fn a_source_that_is_replaced_while_it_is_copied_stays() {
    let (failure, names) = failure_of_changed("replaced", |dir| {
        fs::rename(dir.join("from"), dir.join("old")).unwrap();
        fs::create_dir(dir.join("from")).unwrap();
    });
    assert_eq!(failure.code, Code::Conflict, "{}", failure.message);
    assert_eq!(names, ["from", "old"]);
}

#[test]
fn a_source_that_gets_an_entry_while_it_is_copied_stays() {
    let (failure, names) = failure_of_changed("added", |dir| {
        fs::write(dir.join("from/new"), "").unwrap();
    });
    assert_eq!(failure.code, Code::Conflict, "{}", failure.message);
    assert_eq!(names, ["from"]);
}
