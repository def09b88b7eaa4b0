//! Storage for bundles by digest: files in a directory, or objects in a bucket.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use landfall_fetch::objects::{Bucket, Credentials, InvalidLocation, Location, ObjectsError, Source};
use landfall_fetch::{Algorithm, Digest};
use tempfile::{NamedTempFile, TempDir};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Directory of unfinished files; emptied at every start.
const UNFINISHED: &str = "unfinished";
const KIND: &str = "application/gzip";
/// Maximum number of concurrent local copies of bucket objects that are being read.
const MAX_COPIES: usize = 4;
/// Maximum time in the queue for such a copy.
const COPY_PATIENCE: Duration = Duration::from_secs(30);
/// Number of directories; objects are grouped by the first two hexadecimal digits of their digest.
pub(crate) const FOLDERS: u16 = 256;
/// Maximum number of listed objects per directory: 2.5 million in total, as many as 160,000 nodes may store. Further
/// objects are not listed until others are removed.
const MAX_LISTED: usize = 10_000;

/// Files by the SHA-256 digest of their content.
#[derive(Clone, Debug)]
pub(crate) struct Objects {
    kept: Kept,
}

#[derive(Clone)]
enum Kept {
    Folder(PathBuf),
    /// With this process's own directory for drafts, which is removed at exit.
    Bucket(Arc<Bucket>, Arc<TempDir>, Arc<Semaphore>),
}

/// An object open for reading. A local copy of a bucket object occupies a slot until it is closed.
#[derive(Debug)]
pub(crate) struct Opened {
    file: File,
    place: Option<OwnedSemaphorePermit>,
}

/// A bucket as named on the command line. Contains no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketPlace {
    location: Location,
    credentials: Credentials,
    authority: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum BucketPlaceError {
    #[error(
        "it is not a bucket such as `s3://bundles/hub?credentials-file=/etc/landfall/s3` or \
         `az://bundles/hub?account=fleet&credentials-file=/etc/landfall/azure`"
    )]
    Location(#[source] InvalidLocation),
    #[error(
        "it does not say who the hub is to the object store: add `credentials-file=FILE`, or `identity=cloud` where the \
         cloud has given this workload or machine an identity"
    )]
    NoCredentials,
    #[error(
        "it says twice who the hub is to the object store: `credentials-file` and `identity` exclude each other"
    )]
    Twice,
}

#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("cannot {doing} `{}`", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the object store did not do it")]
    Bucket(#[source] ObjectsError),
    #[error("the object store does not have `{0}` any more")]
    Gone(String),
    #[error("the object store gave something else for `{0}`")]
    Changed(String),
    #[error("too many bundles are being read from the object store")]
    Busy,
}

// === impl BucketPlace ===

impl BucketPlace {
    /// Removes landfall's own parameters from the query; the rest locates the bucket.
    pub fn parse(text: &str) -> Result<Self, BucketPlaceError> {
        let (base, query) = text.split_once('?').unwrap_or((text, ""));
        let (mut file, mut cloud, mut authority, mut others) = (None, None, None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("credentials-file", path)) => file = Some(PathBuf::from(path)),
                Some(("identity", "cloud")) => cloud = Some(Credentials::Cloud),
                Some(("ca-file", path)) => authority = Some(PathBuf::from(path)),
                _ => others.push(pair),
            }
        }
        let place = if others.is_empty() { base.to_owned() } else { format!("{base}?{}", others.join("&")) };
        let location = Location::from_str(&place).map_err(BucketPlaceError::Location)?;
        let credentials = match (file, cloud) {
            (Some(_), Some(_)) => return Err(BucketPlaceError::Twice),
            (file, cloud) => file.map(Credentials::File).or(cloud).ok_or(BucketPlaceError::NoCredentials)?,
        };
        Ok(Self { location, credentials, authority })
    }

    pub(crate) fn open(&self) -> Result<Bucket, ObjectError> {
        let bucket = Bucket::open(self.location.clone(), self.credentials.clone(), self.authority.as_deref());
        bucket.map_err(ObjectError::Bucket)
    }
}

// === impl Objects ===

impl Objects {
    pub(crate) fn folder(root: &Path) -> Result<Self, ObjectError> {
        let drafts = root.join(UNFINISHED);
        match fs::remove_dir_all(&drafts) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("empty", &drafts)(error));
            }
            _ => {}
        }
        make_folder(&drafts)?;
        Ok(Self { kept: Kept::Folder(root.to_owned()) })
    }

    pub(crate) fn bucket(place: &BucketPlace) -> Result<Self, ObjectError> {
        let bucket = place.open()?;
        let drafts = tempfile::tempdir().map_err(failed("make a folder in", &std::env::temp_dir()))?;
        let copies = Arc::new(Semaphore::new(MAX_COPIES));
        Ok(Self { kept: Kept::Bucket(Arc::new(bucket), Arc::new(drafts), copies) })
    }

    /// Creates a draft file, which is removed unless it is stored.
    pub(crate) fn draft(&self) -> Result<NamedTempFile, ObjectError> {
        let folder = self.drafts();
        NamedTempFile::new_in(&folder).map_err(failed("make a file in", &folder))
    }

    /// Returns whether the disk still has the required free space, which depends on its size. Always true for a
    /// bucket, whose objects are on the local disk only briefly.
    pub(crate) fn leaves(&self, free: fn(u64) -> u64) -> Result<bool, ObjectError> {
        let Kept::Folder(root) = &self.kept else { return Ok(true) };
        let found =
            rustix::fs::statvfs(root).map_err(|error| failed("look at the disk of", root)(error.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(bytes(found.f_bavail) >= free(bytes(found.f_blocks)))
    }

    /// Returns the directory of unfinished files and of fetched copies.
    fn drafts(&self) -> PathBuf {
        match &self.kept {
            Kept::Folder(root) => root.join(UNFINISHED),
            Kept::Bucket(_, drafts, _) => drafts.path().to_owned(),
        }
    }

    /// Stores a file durably under its digest, on the disk or in the object store.
    pub(crate) async fn keep(&self, draft: NamedTempFile, digest: &str) -> Result<(), ObjectError> {
        match &self.kept {
            Kept::Folder(root) => {
                let path = root.join(key(digest));
                let root = root.clone();
                let kept = tokio::task::spawn_blocking(move || keep_file(&root, draft, &path)).await;
                kept.unwrap_or_else(|error| Err(failed("write", &self.drafts())(io::Error::other(error))))
            }
            Kept::Bucket(bucket, ..) => {
                let hash = Digest::new(Algorithm::Sha256, digest)
                    .ok_or_else(|| ObjectError::Changed(digest.to_owned()))?;
                bucket
                    .put(&key(digest), KIND, Source::File(draft.path(), &hash))
                    .await
                    .map_err(ObjectError::Bucket)
            }
        }
    }

    /// Opens the file for reading. A bucket object is fetched first, and its digest is verified.
    pub(crate) async fn read(&self, digest: &str, bytes: u64) -> Result<Opened, ObjectError> {
        match &self.kept {
            Kept::Folder(root) => {
                let path = root.join(key(digest));
                let file = File::open(&path).map_err(failed("open", &path))?;
                Ok(Opened { file, place: None })
            }
            Kept::Bucket(bucket, _, copies) => {
                let place = tokio::time::timeout(COPY_PATIENCE, Arc::clone(copies).acquire_owned()).await;
                let Ok(Ok(place)) = place else { return Err(ObjectError::Busy) };
                let draft = self.draft()?;
                let found = bucket.get_to_file(&key(digest), bytes, draft.path()).await;
                match found.map_err(ObjectError::Bucket)? {
                    None => Err(ObjectError::Gone(digest.to_owned())),
                    Some((hash, _)) if hash.hex() != digest => Err(ObjectError::Changed(digest.to_owned())),
                    // The path is removed here; the content exists until the reader closes the file.
                    Some(_) => {
                        let file = File::open(draft.path()).map_err(failed("open", draft.path()))?;
                        Ok(Opened { file, place: Some(place) })
                    }
                }
            }
        }
    }

    /// Removes an object; succeeds if it does not exist.
    pub(crate) async fn remove(&self, digest: &str) -> Result<(), ObjectError> {
        match &self.kept {
            Kept::Folder(root) => {
                let path = root.join(key(digest));
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        Err(failed("remove", &path)(error))
                    }
                    _ => Ok(()),
                }
            }
            Kept::Bucket(bucket, ..) => bucket.delete(&key(digest)).await.map_err(ObjectError::Bucket),
        }
    }

    /// Returns the objects in one of the [`FOLDERS`] that were stored before a given time.
    pub(crate) async fn older_than(
        &self,
        folder: u16,
        before: Timestamp,
    ) -> Result<Vec<String>, ObjectError> {
        let folder = format!("{folder:02x}");
        match &self.kept {
            Kept::Folder(root) => {
                let path = root.join(&folder);
                let listed = tokio::task::spawn_blocking(move || old_files(&path, before)).await;
                listed
                    .unwrap_or_else(|error| Err(failed("list", &root.join(folder))(io::Error::other(error))))
            }
            Kept::Bucket(bucket, ..) => {
                let listed = bucket.list(&format!("{folder}/"), MAX_LISTED).await;
                let listed = listed.map_err(ObjectError::Bucket)?;
                let old = listed.iter().filter(|found| found.modified.is_some_and(|time| time < before));
                let names = old.filter_map(|found| found.key.strip_prefix(&format!("{folder}/")));
                Ok(names.filter(|name| is_digest(name, &folder)).map(str::to_owned).collect())
            }
        }
    }
}

// === impl Opened ===

impl Opened {
    pub(crate) fn into_parts(self) -> (File, Option<OwnedSemaphorePermit>) {
        (self.file, self.place)
    }
}

impl Read for Opened {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer)
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(root) => f.debug_tuple("Folder").field(root).finish(),
            Self::Bucket(bucket, ..) => f.debug_tuple("Bucket").field(bucket.location()).finish(),
        }
    }
}

/// Returns the path of an object. Digests come from the store or from the hub's own hashing, so they are
/// hexadecimal. Grouping them by their first two digits limits the size of a directory.
fn key(digest: &str) -> String {
    format!("{}/{digest}", digest.get(..2).unwrap_or("00"))
}

/// Returns whether [`key`] can produce this name, so that foreign files are left untouched.
fn is_digest(name: &str, folder: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    name.len() == 64 && name.starts_with(folder) && name.bytes().all(plain)
}

fn old_files(folder: &Path, before: Timestamp) -> Result<Vec<String>, ObjectError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("list", folder)(error)),
    };
    let first = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut names = Vec::new();
    for entry in entries.take(MAX_LISTED) {
        let entry = entry.map_err(failed("list", folder))?;
        // Files without readable metadata are skipped.
        let modified = entry.metadata().and_then(|found| found.modified()).ok();
        let is_old =
            modified.and_then(|time| Timestamp::try_from(time).ok()).is_some_and(|time| time < before);
        names.extend(entry.file_name().into_string().ok().filter(|name| is_old && is_digest(name, first)));
    }
    Ok(names)
}

fn keep_file(root: &Path, draft: NamedTempFile, path: &Path) -> Result<(), ObjectError> {
    let folder = path.parent().unwrap_or(root);
    make_folder(folder)?;
    draft.as_file().sync_all().map_err(failed("write", path))?;
    draft.persist(path).map_err(|error| failed("write", path)(error.error))?;
    for folder in [folder, root] {
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("write", folder))?;
    }
    Ok(())
}

fn make_folder(path: &Path) -> Result<(), ObjectError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("make the folder", path))
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ObjectError {
    move |source| ObjectError::File { doing, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use landfall_testkit::{ObjectServer, have};
    use sha2::{Digest as _, Sha256};

    use super::*;

    /// Tests that every kind of storage must pass.
    async fn contract(objects: &Objects) {
        let content = b"the content of a bundle".repeat(10_000);
        let digest = hex::encode(Sha256::digest(&content));
        let bytes = content.len() as u64;
        assert!(objects.read(&digest, bytes).await.is_err());
        objects.remove(&digest).await.unwrap();
        // Twice: a client that lost the response sends the bundle again.
        for _ in 0..2 {
            let mut draft = objects.draft().unwrap();
            draft.write_all(&content).unwrap();
            objects.keep(draft, &digest).await.unwrap();
        }
        let mut read = Vec::new();
        let mut opened = objects.read(&digest, bytes).await.unwrap();
        opened.read_to_end(&mut read).unwrap();
        assert!(read == content);
        if let Kept::Bucket(_, _, copies) = &objects.kept {
            assert_eq!(copies.available_permits(), MAX_COPIES - 1, "while it is read");
            drop(opened);
            assert_eq!(copies.available_permits(), MAX_COPIES);
        }
        let folder = u16::from_str_radix(&digest[..2], 16).unwrap();
        let hour = jiff::SignedDuration::from_hours(1);
        let now = Timestamp::now();
        assert!(objects.older_than(folder, now - hour).await.unwrap().is_empty(), "it is new");
        assert_eq!(objects.older_than(folder, now + hour).await.unwrap(), std::slice::from_ref(&digest));
        assert!(objects.older_than((folder + 1) % FOLDERS, now + hour).await.unwrap().is_empty());
        assert_eq!(fs::read_dir(objects.drafts()).unwrap().count(), 0, "no draft is left");
        objects.remove(&digest).await.unwrap();
        assert!(objects.read(&digest, bytes).await.is_err());
    }

    #[tokio::test]
    async fn a_folder_keeps_the_contract() {
        let folder = tempfile::tempdir().unwrap();
        contract(&Objects::folder(folder.path()).unwrap()).await;
    }

    #[tokio::test]
    async fn a_bucket_keeps_the_contract() {
        for server in ObjectServer::ALL.into_iter().filter(|server| have(server.needs())) {
            let store = server.start().unwrap();
            let (credentials, authority) = (store.credentials(), store.authority());
            let files = format!("credentials-file={}&ca-file={}", credentials.display(), authority.display());
            let place = BucketPlace::parse(&format!("{}&{files}", store.location("hub"))).unwrap();
            let objects = Objects::bucket(&place).unwrap();
            contract(&objects).await;
            // A writer of the bucket cannot change the content of a bundle.
            let digest = "ab".repeat(32);
            let mut draft = objects.draft().unwrap();
            draft.write_all(b"something else").unwrap();
            assert!(objects.keep(draft, &digest).await.is_err(), "it is looked at before it is kept");
            let Kept::Bucket(bucket, _, copies) = &objects.kept else { panic!() };
            bucket.put(&key(&digest), KIND, Source::Bytes(b"something else")).await.unwrap();
            assert!(matches!(objects.read(&digest, 100).await, Err(ObjectError::Changed(_))));
            assert_eq!(copies.available_permits(), MAX_COPIES);
        }
    }

    #[test]
    fn a_bucket_is_named_with_its_credentials() {
        assert!(BucketPlace::parse("s3://bundles/hub?credentials-file=/x&region=eu-west-1").is_ok());
        assert!(BucketPlace::parse("az://bundles/hub?account=fleet&credentials-file=/x").is_ok());
        assert!(BucketPlace::parse("gs://bundles/hub?identity=cloud&ca-file=/x").is_ok());
        for bad in [
            "s3://bundles/hub",
            "s3://bundles/hub?identity=nobody",
            "s3://bundles/hub?identity=nobody&credentials-file=/x",
            "s3://bundles/hub?identity=cloud&credentials-file=/x",
            "s3://B?credentials-file=/x",
            "az://bundles?credentials-file=/x",
            "ftp://bundles?credentials-file=/x",
        ] {
            assert!(BucketPlace::parse(bad).is_err(), "{bad}");
        }
    }
}
