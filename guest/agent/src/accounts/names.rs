//! The names of users and groups by number, for listings, read again when /etc/passwd or /etc/group has changed.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};

use super::{lines, load, number, GROUP, PASSWD};

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
    fn an_id_without_a_name_is_shown_as_a_number() {
        assert_eq!(Names::default().user(4321), b"4321");
        assert_eq!(names().user(0), b"root");
    }
}
