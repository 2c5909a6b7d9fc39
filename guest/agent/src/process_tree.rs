//! A process tree without a cgroup: found in /proc by parents' pids.

use std::collections::BTreeSet;

/// Those of `known` that live, and all their living descendants.
pub fn living_tree(known: &BTreeSet<libc::pid_t>) -> BTreeSet<libc::pid_t> {
    if known.is_empty() {
        return BTreeSet::new();
    }
    let mut members = known.clone();
    let living: Vec<_> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: libc::pid_t| Some((pid, parent_of(pid)?)))
        .collect();
    loop {
        let before = members.len();
        members.extend(
            living
                .iter()
                .filter(|(_, parent)| members.contains(parent))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if members.len() == before {
            break;
        }
    }
    living
        .into_iter()
        .map(|(pid, _)| pid)
        .filter(|pid| members.contains(pid))
        .collect()
}

/// A zombie counts as living: the parent that should reap it is killed too, and then it is reparented to us.
fn parent_of(pid: libc::pid_t) -> Option<libc::pid_t> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything.
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 2;
    let text = std::str::from_utf8(stat.get(after_name..)?).ok()?;
    text.split(' ').nth(1)?.parse().ok()
}
