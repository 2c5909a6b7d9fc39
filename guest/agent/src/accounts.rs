//! Users and groups from /etc/passwd and /etc/group. `getpwnam` is not available: it loads libraries, which a static
//! program cannot.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

use crate::spawn::Identity;
pub use names::{names, Names};

mod names;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: Vec<u8>,
    pub uid: u32,
    pub gid: u32,
    pub home: Vec<u8>,
    /// False: the name is the number, which /etc/group may have as the name of another user.
    pub is_named: bool,
}

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// A longer file is treated as empty.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// NGROUPS_MAX of the kernel.
const MAX_GROUPS: usize = 65_536;

/// The largest uid that a client may name.
const MAX_UID: u32 = i32::MAX as u32;

/// By name, or by number when no account has that name. A number needs no account, and neither does the name root.
pub fn find(user: &[u8]) -> Option<Account> {
    find_in(&load(PASSWD), user)
}

fn find_in(text: &[u8], user: &[u8]) -> Option<Account> {
    let named = lines(text)
        .filter_map(parse_account)
        .find(|account| account.name == user);
    named.or_else(|| {
        if user == b"root" {
            return Some(root());
        }
        let uid = number(user).filter(|&uid| uid <= MAX_UID)?;
        Some(by_uid(text, uid).unwrap_or_else(|| nameless(uid, 0)))
    })
}

fn nameless(uid: u32, gid: u32) -> Account {
    Account {
        name: uid.to_string().into_bytes(),
        uid,
        gid,
        home: b"/".to_vec(),
        is_named: false,
    }
}

fn root() -> Account {
    Account {
        name: b"root".to_vec(),
        uid: 0,
        gid: 0,
        home: b"/root".to_vec(),
        is_named: true,
    }
}

/// By name, or by number when no group has that name. A number needs no group.
pub fn find_group(group: &[u8]) -> Option<u32> {
    let text = load(GROUP);
    let named = lines(&text).find_map(|fields| match fields[..] {
        [name, _, gid, ..] if name == group => number(gid),
        _ => None,
    });
    named.or_else(|| number(group).filter(|&gid| gid <= MAX_UID))
}

/// The agent's own account. Root does not depend on /etc/passwd.
pub fn own() -> Account {
    // SAFETY: plain calls.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    if uid == 0 {
        return Account { gid, ..root() };
    }
    by_uid(&load(PASSWD), uid).unwrap_or_else(|| nameless(uid, gid))
}

pub fn identity(account: &Account) -> Identity {
    let text = if account.is_named {
        load(GROUP)
    } else {
        Vec::new()
    };
    Identity {
        uid: account.uid,
        gid: account.gid,
        groups: groups_of(account, &text),
    }
}

/// The account's group, and those that name it as a member: as many as the kernel takes.
fn groups_of(account: &Account, text: &[u8]) -> Vec<u32> {
    let mut groups = BTreeSet::from([account.gid]);
    for fields in lines(text) {
        let [_, _, gid, members] = fields[..] else {
            continue;
        };
        let is_member = members
            .split(|&byte| byte == b',')
            .any(|member| member == account.name);
        if let Some(gid) = number(gid).filter(|_| is_member) {
            groups.insert(gid);
        }
        if groups.len() == MAX_GROUPS {
            break;
        }
    }
    groups.into_iter().collect()
}

fn by_uid(text: &[u8], uid: u32) -> Option<Account> {
    lines(text)
        .filter_map(parse_account)
        .find(|account| account.uid == uid)
}

fn parse_account(fields: Vec<&[u8]>) -> Option<Account> {
    let [name, _, uid, gid, _, home, ..] = fields[..] else {
        return None;
    };
    Some(Account {
        name: name.to_vec(),
        uid: number(uid)?,
        gid: number(gid)?,
        home: if home.is_empty() { b"/" } else { home }.to_vec(),
        is_named: true,
    })
}

fn lines(text: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    text.split(|&byte| byte == b'\n')
        .map(|line| line.split(|&byte| byte == b':').collect())
}

/// Digits only: Rust would take a plus sign too. The largest number is no id: system calls take it for "leave as it is".
fn number(text: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(text).ok()?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let id = is_number.then(|| digits.parse().ok()).flatten();
    id.filter(|&id| id != u32::MAX)
}

/// Without waiting for another process that has a lease on the file: the loop reads it.
fn load(path: &str) -> Vec<u8> {
    let read = || -> std::io::Result<Vec<u8>> {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(path)?;
        let meta = file.metadata()?;
        let mut text = Vec::new();
        if meta.is_file() && meta.len() <= MAX_FILE_BYTES {
            file.take(MAX_FILE_BYTES).read_to_end(&mut text)?;
        }
        Ok(text)
    };
    read().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_numeric_ids_is_no_account() {
        let text =
            b"root:x:0:0:root:/root:/bin/bash\nbroken\nbad:x:one:1::/:/bin/sh\na:x:7:8:::/bin/sh";
        let accounts: Vec<_> = lines(text).filter_map(parse_account).collect();
        assert_eq!(accounts.len(), 2);
        assert_eq!(accounts[0].home, b"/root");
        assert_eq!(
            accounts[1],
            Account {
                name: b"a".to_vec(),
                uid: 7,
                gid: 8,
                home: b"/".to_vec(),
                is_named: true,
            }
        );
    }

    #[test]
    fn a_number_needs_no_account_and_a_name_does() {
        let text = b"root:x:0:0:root:/root:/bin/bash\n7:x:8:9::/seven:/bin/sh\n";
        let found = |user: &str| find_in(text, user.as_bytes());
        assert_eq!(found("0").unwrap().home, b"/root");
        assert_eq!(found("7").unwrap().uid, 8, "it is a name");
        for uid in [8, 1234, MAX_UID] {
            let account = found(&uid.to_string()).unwrap();
            let home: &[u8] = if uid == 8 { b"/seven" } else { b"/" };
            assert_eq!((account.uid, account.home.as_slice()), (uid, home));
        }
        assert_eq!(found("1234"), Some(nameless(1234, 0)));
        for user in [
            "",
            "2147483648",
            "4294967295",
            "99999999999",
            "-1",
            "+1",
            "1 ",
            "nobody",
        ] {
            assert_eq!(found(user), None, "{user:?}");
        }
    }

    #[test]
    fn root_needs_no_line_and_uid_0_without_one_is_a_number() {
        for text in [&b""[..], b"root:x:zero:0::/elsewhere:/bin/sh\n"] {
            assert_eq!(find_in(text, b"root"), Some(root()));
            assert_eq!(find_in(text, b"0"), Some(nameless(0, 0)));
        }
        let text = b"toor:x:0:0::/toor:/bin/sh\nroot:x:0:1::/elsewhere:/bin/sh\n";
        assert_eq!(find_in(text, b"root").unwrap().home, b"/elsewhere");
        assert_eq!(find_in(text, b"0").unwrap().name, b"toor", "the first");
    }

    #[test]
    fn damaged_lines_are_skipped_and_the_first_of_a_name_counts() {
        let text = b"\n:::\nu\nu:x\nu:x:1000\nu:x:1000:1000::\nu:x:-1:0::/minus:/\nu:x:4294967296:0::/large:/\nu:x:4294967295:0::/same:/\n\
            \xff\xfe:x:5:5::/bytes:/\nu:x:1001:1002::/first\nu:x:1003:1003::/second:/bin/sh\0\n";
        let found = find_in(text, b"u").unwrap();
        assert_eq!((found.uid, found.home.as_slice()), (1000, &b"/"[..]));
        let rest = &text[text.len() - 70..];
        assert_eq!(find_in(rest, b"u").unwrap().home, b"/first");
        assert_eq!(find_in(text, b"\xff\xfe").unwrap().uid, 5);
        assert_eq!(find_in(text, b""), None);
    }

    #[test]
    fn groups_are_those_of_a_name_and_never_too_many() {
        let text: Vec<u8> = (0..70_000)
            .flat_map(|gid| format!("g{gid}:x:{gid}:a,u,1234\n").into_bytes())
            .collect();
        let account = Account {
            name: b"u".to_vec(),
            gid: 100_000,
            ..nameless(7, 0)
        };
        let groups = groups_of(&account, &text);
        assert_eq!(groups.len(), MAX_GROUPS);
        assert!(groups.contains(&100_000));
        assert_eq!(
            groups_of(&account, b"g:x:1:uu\ng:x:x:u\ng:x:2:a,u\n"),
            [2, 100_000]
        );
        let nameless = nameless(1234, 0);
        assert_eq!(identity(&nameless).groups, [0], "it is no member's name");
    }
}
