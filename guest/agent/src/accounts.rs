//! Users and groups from /etc/passwd and /etc/group. `getpwnam` is not available: it loads libraries, which a static
//! program cannot.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::{Arc, Mutex};

use crate::spawn::Identity;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: Vec<u8>,
    pub uid: u32,
    pub gid: u32,
    pub home: Vec<u8>,
}

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// A longer file is treated as empty.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// The largest uid that a client may name.
const MAX_UID: u32 = i32::MAX as u32;

/// By name, or by number when no account has that name. A number needs no account.
pub fn find(user: &[u8]) -> Option<Account> {
    find_in(&load(PASSWD), user)
}

fn find_in(text: &[u8], user: &[u8]) -> Option<Account> {
    let named = lines(text)
        .filter_map(parse_account)
        .find(|account| account.name == user);
    named.or_else(|| {
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
    }
}

/// The agent's own account. Root does not depend on /etc/passwd.
pub fn own() -> Account {
    // SAFETY: plain calls.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let (name, home) = (b"root".to_vec(), b"/root".to_vec());
    if uid == 0 {
        return Account {
            name,
            uid,
            gid,
            home,
        };
    }
    by_uid(&load(PASSWD), uid).unwrap_or_else(|| nameless(uid, gid))
}

pub fn identity(account: &Account) -> Identity {
    let text = load(GROUP);
    let mut groups = vec![account.gid];
    for fields in lines(&text) {
        let [_, _, gid, members] = fields[..] else {
            continue;
        };
        let is_member = members
            .split(|&byte| byte == b',')
            .any(|member| member == account.name);
        if let Some(gid) = number(gid).filter(|gid| is_member && !groups.contains(gid)) {
            groups.push(gid);
        }
    }
    Identity {
        uid: account.uid,
        gid: account.gid,
        groups,
    }
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
    })
}

fn lines(text: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    text.split(|&byte| byte == b'\n')
        .map(|line| line.split(|&byte| byte == b':').collect())
}

/// Digits only: Rust would take a plus sign too.
fn number(text: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(text).ok()?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
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

/// Numbers to names, for listings.
#[derive(Default)]
pub struct Names {
    users: BTreeMap<u32, Vec<u8>>,
    groups: BTreeMap<u32, Vec<u8>>,
}

impl Names {
    pub fn user(&self, uid: u32) -> Vec<u8> {
        named(&self.users, uid)
    }

    pub fn group(&self, gid: u32) -> Vec<u8> {
        named(&self.groups, gid)
    }
}

fn named(names: &BTreeMap<u32, Vec<u8>>, id: u32) -> Vec<u8> {
    names
        .get(&id)
        .cloned()
        .unwrap_or_else(|| id.to_string().into_bytes())
}

/// Modification time, size and inode, which change with the content.
type Stamp = (i64, i64, u64, u64);

static CACHE: Mutex<Option<([Stamp; 2], Arc<Names>)>> = Mutex::new(None);

/// Parsed again only when a file has changed.
pub fn names() -> Arc<Names> {
    let stamp = [stamp(PASSWD), stamp(GROUP)];
    let mut cache = CACHE.lock().unwrap_or_else(|poison| poison.into_inner());
    if let Some((known, names)) = &*cache {
        if *known == stamp {
            return names.clone();
        }
    }
    let names = Arc::new(Names {
        users: numbered(PASSWD),
        groups: numbered(GROUP),
    });
    *cache = Some((stamp, names.clone()));
    names
}

fn stamp(path: &str) -> Stamp {
    std::fs::metadata(path).map_or((0, 0, 0, 0), |meta| {
        (meta.mtime(), meta.mtime_nsec(), meta.len(), meta.ino())
    })
}

/// The first of several names for one number counts.
fn numbered(path: &str) -> BTreeMap<u32, Vec<u8>> {
    let mut names = BTreeMap::new();
    for fields in lines(&load(path)) {
        if let [name, _, id, ..] = fields[..] {
            if let Some(id) = number(id) {
                names.entry(id).or_insert_with(|| name.to_vec());
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_year_2400_has_a_stamp() {
        let path = std::env::temp_dir().join(format!("capsule-stamp-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        let year_2400 = std::time::Duration::from_secs(13_569_465_600);
        file.set_modified(std::time::UNIX_EPOCH + year_2400)
            .unwrap();
        assert_ne!(stamp(path.to_str().unwrap()), (0, 0, 0, 0));
        std::fs::remove_file(&path).unwrap();
    }

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
                home: b"/".to_vec()
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
    fn an_id_without_a_name_is_shown_as_a_number() {
        assert_eq!(Names::default().user(4321), b"4321");
        assert_eq!(names().user(0), b"root");
    }
}
