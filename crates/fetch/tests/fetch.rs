//! Downloads from a correct server, and from misbehaving ones.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::time::Duration;

use landfall_fetch::{Algorithm, Begin, Digest, Exchange, FetchError, Fetcher, Order, Patience, Source};
use landfall_model::{Secret, chain};
use landfall_net::{Backoff, Retries};
use landfall_testkit::{FileServer, Serve};
use tempfile::TempDir;

/// Short timeouts, but long enough for a loaded machine.
const QUICK: Patience = Patience {
    total: Duration::from_secs(60),
    idle: Duration::from_secs(20),
    connect: Duration::from_secs(20),
    rounds: Backoff::millis::<20, 20>().tries::<2>(),
};

struct Place {
    server: FileServer,
    folder: TempDir,
    fetcher: Fetcher,
}

impl Place {
    fn new() -> Self {
        let server = FileServer::start().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let authority = folder.path().join("ca.crt");
        std::fs::write(&authority, server.authority()).unwrap();
        let fetcher = Fetcher::new(Some(&authority)).unwrap();
        std::fs::remove_file(authority).unwrap();
        Self { server, folder, fetcher }
    }

    fn order(&self, paths: &[&str], bytes: &[u8]) -> Order {
        Order {
            urls: paths.iter().map(|path| self.server.url(path)).collect(),
            target: self.folder.path().join("image"),
            digest: Digest::of(Algorithm::Sha512, bytes),
            mode: 0o644,
            max_bytes: 1 << 40,
            patience: QUICK,
        }
    }

    async fn fetch(&self, order: &Order) -> Result<Source, FetchError> {
        self.fetcher.file(order, &|_, _| {}).await
    }

    /// Returns the visible names.
    fn visible(&self) -> Vec<String> {
        names(self.folder.path()).into_iter().filter(|name| !name.starts_with('.')).collect()
    }
}

fn names(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn content() -> Vec<u8> {
    (0..200_000_u32).flat_map(u32::to_le_bytes).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_arrives_whole_and_a_document_too() {
    let place = Place::new();
    place.server.file("/image", content());
    place.server.serve("/moved", Serve::Redirect("/image".to_owned()));
    let order = place.order(&["/moved"], &content());
    place.fetch(&order).await.unwrap();
    assert_eq!(std::fs::read(&order.target).unwrap(), content());
    assert_eq!(names(place.folder.path()), ["image"]);
    let document = place.fetcher.document(&[place.server.url("/image")], 1 << 20, &QUICK).await.unwrap();
    assert_eq!(document.0, content());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_broke_off_is_taken_up_where_it_broke_off() {
    let place = Place::new();
    let bytes = content();
    place.server.serve("/image", Serve::Cut { bytes: bytes.clone(), after: 300_000, times: 1 });
    let order = place.order(&["/image"], &bytes);
    place.fetch(&order).await.unwrap();
    assert_eq!(std::fs::read(&order.target).unwrap(), bytes);
    let asked = place.server.asked();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked[1].starts_with("GET /image from "), "{asked:?}");
    assert_eq!(names(place.folder.path()), ["image"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changed_meanwhile_is_begun_anew() {
    let place = Place::new();
    let bytes = content();
    place.server.serve("/image", Serve::Cut { bytes: bytes.clone(), after: 300_000, times: 9 });
    let once =
        Order { patience: Patience { rounds: Retries::ONCE, ..QUICK }, ..place.order(&["/image"], &bytes) };
    let error = place.fetch(&once).await.unwrap_err();
    assert!(matches!(error, FetchError::Short { expected: 800_000, .. }), "{error:?}");
    assert_eq!(place.visible(), [""; 0], "a partial file has its final name");
    let other: Vec<u8> = bytes.iter().rev().copied().collect();
    place.server.file("/image", other.clone());
    let order = place.order(&["/image"], &other);
    place.fetch(&order).await.unwrap();
    assert_eq!(std::fs::read(&order.target).unwrap(), other);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_steps_in() {
    let place = Place::new();
    place.server.serve("/gone", Serve::Status(404));
    place.server.file("/wrong", b"something else".to_vec());
    place.server.file("/right", content());
    let order = place.order(&["/gone", "/wrong", "/right"], &content());
    let source = place.fetch(&order).await.unwrap();
    assert_eq!(std::fs::read(&order.target).unwrap(), content());
    // The source names the URL that delivered, and why the others failed.
    assert_eq!(source.url, place.server.url("/right"));
    let refused: Vec<&str> = source.passed_over.iter().map(|refusal| refusal.reason.as_str()).collect();
    assert!(refused[0].contains("answered 404") && refused[1].contains("its sha512 is"), "{refused:?}");
    let urls = [place.server.url("/gone"), place.server.url("/right")];
    let (_, source) = place.fetcher.document(&urls, 1 << 20, &QUICK).await.unwrap();
    assert_eq!((source.url, source.passed_over.len()), (place.server.url("/right"), 1));
    // No URL delivers: the error still records that one had the wrong content.
    let order = place.order(&["/gone", "/wrong"], b"another");
    let error = place.fetch(&order).await.unwrap_err();
    assert!(matches!(error, FetchError::Everywhere { wrong: true, .. }), "{error:?}");
}

/// The original retried only failed connections; an error status of the server was final.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_trouble_is_asked_again_and_a_clear_no_is_not() {
    let place = Place::new();
    for (code, asked) in [(500, 2), (503, 2), (429, 2), (404, 1), (403, 1)] {
        let path = format!("/{code}");
        place.server.serve(&path, Serve::Status(code));
        let error = place.fetch(&place.order(&[&path], b"")).await.unwrap_err();
        assert!(matches!(error, FetchError::Status { status, .. } if status == code), "{error:?}");
        let count = place.server.asked().iter().filter(|line| line.ends_with(&path)).count();
        assert_eq!(count, asked, "{code}");
    }
    assert_eq!(names(place.folder.path()).len(), 1, "only a hidden, empty beginning may be left");
    assert_eq!(place.visible(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_content_leaves_nothing() {
    let place = Place::new();
    place.server.file("/image", b"not what was promised".to_vec());
    let error = place.fetch(&place.order(&["/image"], &content())).await.unwrap_err();
    assert!(matches!(error, FetchError::WrongHash { algorithm: "sha512", .. }), "{error:?}");
    assert_eq!(names(place.folder.path()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_on_time_and_size_hold() {
    let place = Place::new();
    place.server.serve("/drip", Serve::Drip { claimed: 1 << 20 });
    let slow = Order {
        patience: Patience { total: Duration::from_secs(2), ..QUICK },
        ..place.order(&["/drip"], b"")
    };
    let error = place.fetch(&slow).await.unwrap_err();
    assert!(matches!(error, FetchError::Late { .. }), "{error:?}");

    place.server.serve("/silent", Serve::Claim { claimed: 1000 });
    let silent = Order {
        patience: Patience { idle: Duration::from_millis(500), rounds: Retries::ONCE, ..QUICK },
        ..place.order(&["/silent"], b"")
    };
    let error = place.fetch(&silent).await.unwrap_err();
    assert!(matches!(error, FetchError::Idle { .. }), "{error:?}");

    place.server.file("/image", content());
    let small = Order { max_bytes: 1000, ..place.order(&["/image"], &content()) };
    let error = place.fetch(&small).await.unwrap_err();
    assert!(matches!(error, FetchError::TooLong { limit: 1000, .. }), "{error:?}");
    let error = place.fetcher.document(&[place.server.url("/image")], 1000, &QUICK).await.unwrap_err();
    assert!(matches!(error, FetchError::TooLong { limit: 1000, .. }), "{error:?}");
    let error =
        place.fetcher.document(&[place.server.url("/drip")], 1 << 30, &slow.patience).await.unwrap_err();
    assert!(matches!(error, FetchError::Late { .. }), "{error:?}");
    assert_eq!(place.visible(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_without_room_is_told_before_it_is_full() {
    let place = Place::new();
    place.server.serve("/image", Serve::Claim { claimed: 1 << 62 });
    let order = Order { max_bytes: u64::MAX, ..place.order(&["/image"], b"") };
    let error = place.fetch(&order).await.unwrap_err();
    assert!(matches!(error, FetchError::NoSpace { .. }), "{error:?}");
    assert_eq!(names(place.folder.path()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_is_not_trusted_is_not_asked() {
    let place = Place::new();
    let other = FileServer::start().unwrap();
    other.file("/image", content());
    let order = Order { urls: vec![other.url("/image")], ..place.order(&[], &content()) };
    let error = place.fetch(&order).await.unwrap_err();
    assert!(matches!(error, FetchError::Transport { .. }), "{error:?}");
    assert_eq!(other.asked(), [""; 0]);
    let plain = format!("http://{}/x", place.server.address());
    place.server.serve("/down", Serve::Redirect(plain));
    let error = place.fetch(&place.order(&["/down"], b"")).await.unwrap_err();
    assert!(matches!(&error, FetchError::Transport { source, .. } if source.is_redirect()), "{error:?}");
}

#[tokio::test]
async fn an_answer_that_broke_off_is_taken_up_where_it_broke_off() {
    let place = Place::new();
    let bytes = content();
    place.server.serve("/once", Serve::Cut { bytes: bytes.clone(), after: 1000, times: 1 });
    let mut question = Exchange::get(place.server.url("/once"), QUICK.idle, 1 << 30);
    question.begin = Begin::WhereCut;
    let target = place.folder.path().join("payload");
    place.fetcher.exchange_to_file(&question, &target).await.unwrap_err();
    assert_eq!(place.visible(), [""; 0], "nothing that is not whole has its name");
    let saved = place.fetcher.exchange_to_file(&question, &target).await.unwrap();
    assert_eq!(saved.file, Some((Digest::of(Algorithm::Sha256, &bytes), bytes.len() as u64)));
    assert_eq!(std::fs::read(&target).unwrap(), bytes);
    assert_eq!(place.server.asked(), ["GET /once", "GET /once from 1000"]);

    // The process ended between the last byte and the rename.
    place.server.serve("/whole", Serve::Cut { bytes: bytes.clone(), after: bytes.len() - 1, times: 1 });
    question.url = place.server.url("/whole");
    let target = place.folder.path().join("whole");
    place.fetcher.exchange_to_file(&question, &target).await.unwrap_err();
    let part =
        names(place.folder.path()).into_iter().find(|name| name.ends_with("whole.landfall-part")).unwrap();
    std::fs::write(place.folder.path().join(part), &bytes).unwrap();
    place.fetcher.exchange_to_file(&question, &target).await.unwrap();
    assert_eq!(std::fs::read(&target).unwrap(), bytes);

    // Another document at the same URL: the download starts from scratch.
    place.server.serve("/other", Serve::Cut { bytes: bytes.clone(), after: 1000, times: 1 });
    question.url = place.server.url("/other");
    let target = place.folder.path().join("other");
    place.fetcher.exchange_to_file(&question, &target).await.unwrap_err();
    place.server.file("/other", "short and new");
    place.fetcher.exchange_to_file(&question, &target).await.unwrap();
    assert_eq!(std::fs::read(&target).unwrap(), b"short and new");
}

#[tokio::test]
async fn a_secret_in_the_query_is_sent_and_in_no_error() {
    let place = Place::new();
    place.server.file("/plain?sig=canary", "first");
    place.server.file("/asked?a=b&sig=canary", "second");
    let question = |url: String, limit| {
        let secret_query = Some(Secret::new("sig=canary".to_owned()));
        Exchange { secret_query, ..Exchange::get(url, QUICK.idle, limit) }
    };
    for (path, expected) in [("/plain", "first"), ("/asked?a=b", "second")] {
        let question = question(place.server.url(path), 100);
        assert_eq!(place.fetcher.exchange(&question).await.unwrap().body, expected.as_bytes());
    }
    for (url, limit) in [
        (place.server.url("/plain"), 1),
        (place.server.url("/plain").replace("https:", "http:"), 100),
        (place.server.url("/plain").replace("https:", "no scheme:"), 100),
    ] {
        let error = place.fetcher.exchange(&question(url, limit)).await.unwrap_err();
        let said = format!("{} {error:?}", chain(&error));
        assert!(!said.contains("canary"), "{said}");
    }
}
