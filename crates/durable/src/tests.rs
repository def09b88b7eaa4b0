use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::simulated::{Aftermath, Moment, SimulatedDisk};
use super::*;

/// A write under test; returns whether it reported success.
type Act<'a> = &'a dyn Fn(&SimulatedDisk) -> bool;
/// Receives the remaining content, whether success was reported, and a description for a failure.
type Judge<'a> = &'a mut dyn FnMut(Option<Vec<u8>>, bool, &str);

const TARGET: &str = "/etc/kubelet.env";

fn disk_with(old: Option<&[u8]>) -> SimulatedDisk {
    let disk = SimulatedDisk::new(&["/etc"]);
    if let Some(old) = old {
        write(&disk, Path::new(TARGET), old, Access::PUBLIC).unwrap();
    }
    disk
}

/// Runs `act` with a power failure at each of its operations.
///
/// Calls `judge` with the remaining content of every possible state, and with whether `act` had succeeded before the
/// power failure.
fn at_every_moment(old: Option<&[u8]>, act: Act<'_>, judge: Judge<'_>) -> usize {
    let mut worlds = 0;
    for aftermath in Aftermath::ALL {
        for moment in [Moment::Before, Moment::After] {
            for number in 0.. {
                let disk = disk_with(old);
                let first = disk.operations().len();
                disk.cut_power_at(first + number, moment);
                let returned = act(&disk);
                let over = !disk.is_off();
                let story = format!("{aftermath:?} {moment:?} {:?}", &disk.operations()[first..]);
                disk.power_on(aftermath);
                judge(disk.peek(Path::new(TARGET)), returned, &story);
                worlds += 1;
                if over {
                    break;
                }
            }
        }
    }
    worlds
}

#[test]
fn a_write_leaves_the_old_or_the_new_at_every_moment_in_every_world() {
    for old in [None, Some(&b"old content"[..])] {
        let act =
            |disk: &SimulatedDisk| write(disk, Path::new(TARGET), b"new content", Access::PUBLIC).is_ok();
        let worlds = at_every_moment(old, &act, &mut |left, returned, story| {
            let left = left.as_deref();
            assert!(left == old || left == Some(b"new content"), "{left:?} after {story}");
            assert!(!returned || left == Some(b"new content"), "success was said too early: {story}");
        });
        assert_eq!(worlds, 6 * 2 * (5 + 1), "open, write, sync, rename, sync directory, and none");
    }
}

#[test]
fn a_removal_leaves_the_file_or_nothing_at_every_moment_in_every_world() {
    let act = |disk: &SimulatedDisk| remove(disk, Path::new(TARGET)).is_ok();
    at_every_moment(Some(b"old content"), &act, &mut |left, returned, story| {
        assert!(left.is_none() || left.as_deref() == Some(b"old content"), "{left:?} after {story}");
        assert!(!returned || left.is_none(), "success was said too early: {story}");
    });
}

#[test]
fn a_published_download_is_whole_or_absent_at_every_moment_in_every_world() {
    let partial = Path::new("/etc/kubelet.env.partial");
    let act = |disk: &SimulatedDisk| {
        let Ok(mut file) = disk.open_draft(partial, Access::PUBLIC) else { return false };
        file.write_all(b"new content").is_ok() && publish(disk, partial, Path::new(TARGET)).is_ok()
    };
    at_every_moment(None, &act, &mut |left, returned, story| {
        assert!(left.is_none() || left.as_deref() == Some(b"new content"), "{left:?} after {story}");
        assert!(!returned || left.is_some(), "success was said too early: {story}");
    });
}

#[test]
fn a_directory_that_was_made_stays_with_what_is_in_it() {
    for aftermath in Aftermath::ALL {
        let disk = SimulatedDisk::new(&["/var"]);
        // Another process created it and died before its name was durable.
        disk.create_dir(Path::new("/var/state"), Access::PRIVATE_DIR).unwrap();
        disk.restart_process();
        create_dir(&disk, Path::new("/var/state"), Access::PRIVATE_DIR).unwrap();
        write(&disk, Path::new("/var/state/file"), b"content", Access::PRIVATE).unwrap();
        disk.power_on(aftermath);
        assert_eq!(
            disk.peek(Path::new("/var/state/file")).as_deref(),
            Some(&b"content"[..]),
            "{aftermath:?}"
        );
    }
}

/// The simulated disk is only useful if it detects the omissions of an incorrect writer.
#[test]
fn each_omission_is_caught_in_some_world() {
    let target = Path::new(TARGET);
    let hidden = Path::new("/etc/.kubelet.env.landfall-draft");
    let in_place = |disk: &SimulatedDisk| {
        let Ok(mut file) = disk.open_draft(target, Access::PUBLIC) else { return false };
        file.write_all(b"new content").is_ok() && file.sync().is_ok()
    };
    let without_file_sync = |disk: &SimulatedDisk| {
        let Ok(mut file) = disk.open_draft(hidden, Access::PUBLIC) else { return false };
        let mut steps = || -> io::Result<()> {
            file.write_all(b"new content")?;
            disk.rename(hidden, target)?;
            disk.sync_dir(Path::new("/etc"))
        };
        steps().is_ok()
    };
    let without_directory_sync = |disk: &SimulatedDisk| {
        let Ok(mut file) = disk.open_draft(hidden, Access::PUBLIC) else { return false };
        let mut steps = || -> io::Result<()> {
            file.write_all(b"new content")?;
            file.sync()?;
            disk.rename(hidden, target)
        };
        steps().is_ok()
    };
    let careless: [(&str, Act<'_>); 3] = [
        ("in place", &in_place),
        ("without file sync", &without_file_sync),
        ("without directory sync", &without_directory_sync),
    ];
    for (name, act) in careless {
        let mut caught = 0;
        at_every_moment(Some(b"old content"), act, &mut |left, returned, _| {
            let half = left.as_deref() != Some(b"old content") && left.as_deref() != Some(b"new content");
            let early = returned && left.as_deref() != Some(b"new content");
            caught += usize::from(half || early);
        });
        assert!(caught > 0, "{name} was not caught");
    }
}

#[test]
fn a_draft_that_is_given_up_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("image.raw");
    let mut draft = Draft::create(&HostDisk, &target, Access::PUBLIC).unwrap();
    draft.append(b"half").unwrap();
    drop(draft);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn the_host_disk_gives_mode_content_and_no_leftover() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("kubelet.env");
    std::fs::write(dir.path().join(".kubelet.env.landfall-draft"), "left by a crash, longer than the new")
        .unwrap();
    let group = std::fs::metadata(dir.path()).unwrap().gid();
    let user = std::fs::metadata(dir.path()).unwrap().uid();
    write(&HostDisk, &target, b"A=1\n", Access { mode: 0o640, owner: Some(Owner { user, group }) }).unwrap();
    assert_eq!(std::fs::read(&target).unwrap(), b"A=1\n");
    assert_eq!(std::fs::metadata(&target).unwrap().permissions().mode() & 0o7777, 0o640);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    remove(&HostDisk, &target).unwrap();
    remove(&HostDisk, &target).unwrap();
    assert!(!target.exists());
}

#[test]
fn two_writers_of_one_file_do_not_mix() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("kubelet.env");
    let mut first = Draft::create(&HostDisk, &target, Access::PUBLIC).unwrap();
    first.append(b"first").unwrap();
    let refused = Draft::create(&HostDisk, &target, Access::PUBLIC).unwrap_err();
    assert_eq!(refused.source.kind(), io::ErrorKind::WouldBlock);
    first.commit().unwrap();
    assert_eq!(std::fs::read(&target).unwrap(), b"first");
    write(&HostDisk, &target, b"second", Access::PUBLIC).unwrap();
    assert_eq!(std::fs::read(&target).unwrap(), b"second");
}

#[test]
fn a_link_in_place_of_the_draft_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, dir.path().join(".f.landfall-draft")).unwrap();
    assert!(write(&HostDisk, &dir.path().join("f"), b"x", Access::PUBLIC).is_err());
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn a_full_disk_is_an_error_that_names_the_file_and_leaves_the_old_one() {
    #[derive(Debug)]
    struct Full(HostDisk);
    #[derive(Debug)]
    struct FullFile;
    impl DraftFile for FullFile {
        fn write_all(&mut self, _: &[u8]) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn sync(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    impl Disk for Full {
        fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
            self.0.read(path, limit)
        }
        fn names(&self, dir: &Path) -> io::Result<Vec<OsString>> {
            self.0.names(dir)
        }
        fn open_draft(&self, path: &Path, access: Access) -> io::Result<Box<dyn DraftFile>> {
            self.0.open_draft(path, access)?;
            Ok(Box::new(FullFile))
        }
        fn sync_file(&self, path: &Path) -> io::Result<()> {
            self.0.sync_file(path)
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.0.rename(from, to)
        }
        fn sync_dir(&self, dir: &Path) -> io::Result<()> {
            self.0.sync_dir(dir)
        }
        fn sync_all(&self) -> io::Result<()> {
            self.0.sync_all()
        }
        fn remove_file(&self, path: &Path) -> io::Result<()> {
            self.0.remove_file(path)
        }
        fn create_dir(&self, path: &Path, access: Access) -> io::Result<()> {
            self.0.create_dir(path, access)
        }
        fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
            self.0.lock(path)
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("kubelet.env");
    std::fs::write(&target, "old").unwrap();
    let error = write(&Full(HostDisk), &target, b"new", Access::PUBLIC).unwrap_err();
    assert_eq!((error.doing, error.source.kind()), (Doing::Write, io::ErrorKind::StorageFull));
    assert!(error.to_string().contains("kubelet.env"), "{error}");
    assert_eq!(std::fs::read(&target).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn link_replaces_link_file_and_leftover() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("link");
    std::fs::write(&path, "a file").unwrap();
    std::fs::write(dir.path().join(".link.landfall-link"), "a leftover").unwrap();
    for to in ["one", "two"] {
        write_link(&path, Path::new(to)).unwrap();
        assert_eq!(std::fs::read_link(&path).unwrap(), Path::new(to));
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
