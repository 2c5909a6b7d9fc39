//! The job on a real directory. It runs only while a test drains it, so that no test depends on which comes first.

use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};

use super::*;
use crate::files::location::Location;
use crate::files::temporary::{Asked, Temporary};
use crate::record::Reader;

struct Watch {
    dir: PathBuf,
    job: Watching,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.dir.parent().unwrap());
    }
}

/// `outer/dir` is watched.
fn watch_with(name: &str, limit: u32, prepare: impl Fn(&Path)) -> Result<Watch, Failure> {
    let outer = std::env::temp_dir().join(format!("capsule-{name}-{}", std::process::id()));
    let dir = outer.join("dir");
    fs::create_dir_all(&dir).unwrap();
    prepare(&dir);
    let mut watch = Watch {
        job: Watching::new(dir.clone(), true, limit),
        dir,
    };
    let (event, told, _) = watch.drain()?;
    assert_eq!(
        event,
        Some(watching_event(watch.dir.as_os_str().as_encoded_bytes()))
    );
    assert_eq!(told, Vec::<String>::new());
    Ok(watch)
}

fn watch(name: &str) -> Watch {
    watch_with(name, 1_000, |_| {}).unwrap()
}

type Drained = (Option<Vec<u8>>, Vec<String>, bool);

impl Watch {
    fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The changes until it waits, `kind path to` below the directory, and whether it is done.
    fn drain(&mut self) -> Result<Drained, Failure> {
        let (mut event, mut data, mut is_done) = (None, Vec::new(), false);
        loop {
            let progress = self.job.step(Vec::new());
            event = event.or(progress.event);
            data.extend(progress.data);
            match progress.next {
                Next::Continue => continue,
                Next::AwaitEvents => {}
                Next::Done { .. } => is_done = true,
                Next::Await => panic!("it takes no input"),
                Next::Failed(failure) => return Err(failure),
            }
            return Ok((event, self.decode(&data), is_done));
        }
    }

    fn told(&mut self) -> Vec<String> {
        let (_, told, is_done) = self.drain().unwrap();
        assert!(!is_done);
        told
    }

    fn decode(&self, data: &[u8]) -> Vec<String> {
        const KINDS: [&str; 6] = ["create", "write", "remove", "rename", "chmod", "overflow"];
        let prefix = format!("{}/", self.dir.display());
        let short = |path: &[u8]| {
            let path = String::from_utf8_lossy(path).into_owned();
            path.strip_prefix(&prefix)
                .map_or(path.clone(), String::from)
        };
        let mut fields = Reader::new(data);
        let mut told = Vec::new();
        while let Ok(kind) = fields.u8() {
            let (path, to) = (fields.str().unwrap(), fields.optional().unwrap());
            let words = [KINDS[usize::from(kind)].to_string(), short(path)];
            let words: Vec<_> = words.into_iter().chain(to.map(short)).collect();
            told.push(words.join(" ").trim_end().to_string());
        }
        told
    }
}

#[test]
fn each_kind_of_change_is_told() {
    let mut watch = watch("kinds");
    fs::write(watch.at("a"), "x").unwrap();
    assert_eq!(watch.told(), ["create a", "write a"]);
    fs::write(watch.at("a"), "xyz").unwrap();
    assert_eq!(watch.told(), ["write a"]);
    fs::set_permissions(watch.at("a"), PermissionsExt::from_mode(0o600)).unwrap();
    fs::rename(watch.at("a"), watch.at("b")).unwrap();
    symlink("b", watch.at("link")).unwrap();
    fs::hard_link(watch.at("b"), watch.at("c")).unwrap();
    fs::remove_file(watch.at("b")).unwrap();
    let expected = [
        "chmod a",
        "rename a b",
        "create link",
        "create c",
        "remove b",
    ];
    assert_eq!(watch.told(), expected);
}

#[test]
fn moves_across_its_border_are_creates_and_removes() {
    let mut watch = watch("border");
    let outside = watch.dir.parent().unwrap().join("outside");
    fs::create_dir_all(outside.join("tree/deep")).unwrap();
    fs::write(outside.join("tree/deep/file"), "x").unwrap();
    fs::rename(outside.join("tree"), watch.at("in")).unwrap();
    assert_eq!(
        watch.told(),
        ["create in", "create in/deep", "create in/deep/file"]
    );
    fs::write(watch.at("in/deep/file"), "more").unwrap();
    fs::rename(watch.at("in/deep"), watch.at("moved")).unwrap();
    fs::write(watch.at("moved/file"), "most").unwrap();
    let expected = [
        "write in/deep/file",
        "rename in/deep moved",
        "write moved/file",
    ];
    assert_eq!(watch.told(), expected);
    fs::rename(watch.at("moved"), outside.join("out")).unwrap();
    fs::write(outside.join("out/file"), "unseen").unwrap();
    fs::write(outside.join("out/more"), "unseen").unwrap();
    assert_eq!(watch.told(), ["remove moved"]);
}

#[test]
fn directories_made_later_are_told_with_all_in_them() {
    let mut watch = watch("later");
    fs::create_dir_all(watch.at("a/b/c")).unwrap();
    fs::write(watch.at("a/b/c/file"), "x").unwrap();
    let expected = [
        "create a",
        "create a/b",
        "create a/b/c",
        "create a/b/c/file",
    ];
    assert_eq!(watch.told(), expected);
    fs::write(watch.at("a/b/c/file"), "xy").unwrap();
    fs::create_dir(watch.at("d")).unwrap();
    fs::rename(watch.at("d"), watch.at("e")).unwrap();
    fs::write(watch.at("e/file"), "").unwrap();
    let expected = [
        "write a/b/c/file",
        "create d",
        "rename d e",
        "create e/file",
    ];
    assert_eq!(watch.told(), expected);
    fs::remove_dir_all(watch.at("a")).unwrap();
    let expected = [
        "remove a/b/c/file",
        "remove a/b/c",
        "remove a/b",
        "remove a",
    ];
    assert_eq!(watch.told(), expected);
}

#[test]
fn links_are_not_followed() {
    let mut watch = watch_with("links", 1_000, |dir| {
        fs::create_dir(dir.with_file_name("target")).unwrap();
        symlink("../target", dir.join("before")).unwrap();
    })
    .unwrap();
    symlink("../target", watch.at("after")).unwrap();
    symlink(".", watch.at("loop")).unwrap();
    fs::write(watch.at("before/file"), "x").unwrap();
    assert_eq!(watch.told(), ["create after", "create loop"]);
    let failure = Watching::new(watch.at("after"), true, 9).step(Vec::new());
    assert!(matches!(failure.next, Next::Failed(it) if it.code == Code::Invalid));
}

#[test]
fn a_file_under_a_temporary_name_is_one_change_of_its_own() {
    let mut watch = watch("atomic");
    let location = Location::find(&watch.at("file")).unwrap();
    let write = || {
        let mut file = Temporary::create(&location.dir).unwrap();
        std::io::Write::write_all(&mut file.file(), b"content").unwrap();
        file.rename(&location, Asked::default()).unwrap();
    };
    write();
    assert_eq!(watch.told(), ["create file"]);
    write();
    assert_eq!(watch.told(), ["write file"]);
    drop(Temporary::create(&location.dir).unwrap());
    let mut spooled = Temporary::spool().unwrap();
    if spooled.rename(&location, Asked::default()).is_ok() {
        assert_eq!(watch.told(), ["write file"], "from another directory");
    }
}

#[test]
fn it_ends_when_the_path_leads_to_it_no_more() {
    type End = fn(&Path);
    let ends: [(&str, End); 4] = [
        ("removed", |dir| fs::remove_dir(dir).unwrap()),
        ("moved", |dir| {
            fs::rename(dir, dir.with_file_name("x")).unwrap()
        }),
        ("above", |dir| {
            let outer = dir.parent().unwrap();
            fs::rename(outer, outer.with_extension("moved")).unwrap();
            fs::remove_dir_all(outer.with_extension("moved")).unwrap();
        }),
        ("replaced", |dir| {
            fs::remove_dir(dir).unwrap();
            fs::create_dir(dir).unwrap();
        }),
    ];
    for (name, end) in ends {
        let mut watch = watch(name);
        // A directory that is open is not gone for inotify.
        let held = fs::File::open(&watch.dir).unwrap();
        fs::write(watch.at("last"), "").unwrap();
        fs::remove_file(watch.at("last")).unwrap();
        end(&watch.dir);
        let (_, told, is_done) = watch.drain().unwrap();
        let own = format!("remove {}", watch.dir.display());
        assert_eq!(told, ["create last", "remove last", &own], "{name}");
        assert!(is_done, "{name}");
        drop(held);
    }
}

#[test]
fn too_many_directories_are_a_failure_and_later_an_overflow() {
    let failure = watch_with("many", 2, |dir| {
        fs::create_dir_all(dir.join("a/b")).unwrap()
    });
    let failure = failure.map(drop).unwrap_err();
    assert_eq!(failure.code, Code::TooLarge);
    assert!(failure.message.ends_with("has more than 2 directories"));

    let mut watch = watch_with("limit", 2, |_| {}).unwrap();
    fs::create_dir(watch.at("a")).unwrap();
    fs::create_dir(watch.at("b")).unwrap();
    fs::write(watch.at("a/file"), "").unwrap();
    let told = watch.told();
    assert_eq!(
        told.iter().filter(|it| *it == "overflow").count(),
        1,
        "{told:?}"
    );
    fs::write(watch.at("file"), "").unwrap();
    assert_eq!(watch.told(), ["create file"], "it goes on");
    for name in ["a", "b"] {
        fs::remove_dir_all(watch.at(name)).unwrap();
    }
    assert!(
        watch.told().contains(&"overflow".to_string()),
        "there is room again"
    );
    fs::create_dir(watch.at("c")).unwrap();
    fs::write(watch.at("c/file"), "").unwrap();
    assert_eq!(watch.told(), ["create c", "create c/file"]);
}

#[test]
fn lost_events_are_one_overflow_and_it_goes_on() {
    let mut watch = watch("overflow");
    let most: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    fs::create_dir(watch.at("unseen")).unwrap();
    // Equal events in a row would be one.
    let files = ["0", "1"].map(|name| fs::File::create(watch.at(name)).unwrap());
    for n in 0..most {
        let mode = PermissionsExt::from_mode(0o600);
        files[n % 2].set_permissions(mode).unwrap();
    }
    fs::create_dir(watch.at("unseen/below")).unwrap();
    let told = watch.told();
    assert_eq!(told.iter().filter(|it| *it == "overflow").count(), 1);
    assert_eq!(told.last().unwrap(), "overflow", "nothing is told twice");
    fs::write(watch.at("unseen/below/file"), "").unwrap();
    assert_eq!(watch.told(), ["create unseen/below/file"]);
}
