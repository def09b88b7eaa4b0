//! Answers of stores: minimal XML, parsed as untrusted input. Pure.

use jiff::Timestamp;

/// Limit for objects of one page; stores do not send more by default.
const MAX_LISTED: usize = 1000;
/// Bytes of a store's message that are shown.
const MAX_REASON: usize = 300;
/// Length of the longest entity, `#x10FFFF;`, with some leading zeros. Without the limit, a body full of `&` would be
/// searched completely for each of them.
const MAX_ENTITY: usize = 12;

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub key: String,
    pub bytes: u64,
    pub modified: Option<Timestamp>,
}

/// A page of a listing, and the token for the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub objects: Vec<Listed>,
    pub next: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store's listing cannot be understood")]
pub struct InvalidAnswer;

/// Parses a page of a listing, of S3 or of Azure.
pub fn page(xml: &[u8]) -> Result<Page, InvalidAnswer> {
    let text = std::str::from_utf8(xml).map_err(|_| InvalidAnswer)?;
    let inside = |name| element(text, name).map(|found| found.inside);
    let page = match (inside("ListBucketResult"), inside("EnumerationResults")) {
        (Some(listing), _) => s3_page(listing),
        (None, Some(listing)) => azure_page(listing),
        (None, None) => None,
    };
    page.ok_or(InvalidAnswer)
}

/// Parses an answer to `ListObjectsV2` with `encoding-type=url`.
fn s3_page(listing: &str) -> Option<Page> {
    // Not every store supports the requested encoding.
    let escaped = element(listing, "EncodingType").is_some_and(|found| found.inside.trim() == "url");
    let objects = each(listing, "Contents", |object| {
        let part = |name| element(object, name).map(|found| found.inside);
        let key = unescape(part("Key")?);
        let key = if escaped { unescape_url(&key, Plus::Space)? } else { key };
        let bytes = part("Size")?.trim().parse().ok()?;
        let modified = part("LastModified").and_then(|time| time.trim().parse().ok());
        Some(Some(Listed { key, bytes, modified }))
    })?;
    let truncated = element(listing, "IsTruncated").is_some_and(|found| found.inside.trim() == "true");
    let next = element(listing, "NextContinuationToken").map(|found| unescape(found.inside));
    let next = next.filter(|next| !next.is_empty());
    match (truncated, next) {
        (true, None) => None,
        (true, next) => Some(Page { objects, next }),
        (false, _) => Some(Page { objects, next: None }),
    }
}

/// Parses an answer to `List Blobs`.
fn azure_page(listing: &str) -> Option<Page> {
    let objects = each(listing, "Blob", |object| {
        let name = element(object, "Name")?;
        let key = unescape(name.inside);
        // Only names that XML cannot contain are encoded.
        let escaped = name.attributes.contains("Encoded=\"true\"");
        let key = if escaped { unescape_url(&key, Plus::Plus)? } else { key };
        let part = |name| element(object, name).map(|found| found.inside.trim());
        // Accounts with a hierarchical namespace list directories.
        if part("ResourceType") == Some("directory") {
            return Some(None);
        }
        let bytes = part("Content-Length")?.parse().ok()?;
        let modified = part("Last-Modified").and_then(|time| jiff::fmt::rfc2822::parse(time).ok());
        Some(Some(Listed { key, bytes, modified: modified.map(|time| time.timestamp()) }))
    })?;
    let next = element(listing, "NextMarker").map(|found| unescape(found.inside));
    Some(Page { objects, next: next.filter(|next| !next.is_empty()) })
}

/// Converts each element of this name; `None`, if one of them is invalid or there are too many.
fn each(text: &str, name: &str, read: impl Fn(&str) -> Option<Option<Listed>>) -> Option<Vec<Listed>> {
    let mut objects = Vec::new();
    let (mut rest, mut count) = (text, 0);
    while let Some(found) = element(rest, name) {
        count += 1;
        if count > MAX_LISTED {
            return None;
        }
        objects.extend(read(found.inside)?);
        rest = found.after;
    }
    Some(objects)
}

/// Returns code and message of an error response, as far as it contains them.
pub fn refusal(xml: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(xml);
    let part = |name| shown(&element(&text, name).map(|found| unescape(found.inside)).unwrap_or_default());
    (part("Code"), part("Message"))
}

/// Shortens a store's message for display.
pub(crate) fn shown(word: &str) -> String {
    word.chars().filter(|c| !c.is_control()).take(MAX_REASON).collect()
}

struct Element<'a> {
    attributes: &'a str,
    inside: &'a str,
    after: &'a str,
}

/// Finds the first element of this name. Stores do not nest elements of the same name.
fn element<'a>(text: &'a str, name: &str) -> Option<Element<'a>> {
    let mut from = 0;
    loop {
        let start = from + text.get(from..)?.find(&format!("<{name}"))?;
        let after = &text[start + 1 + name.len()..];
        match after.bytes().next()? {
            b'>' | b' ' | b'\n' | b'\r' | b'\t' | b'/' => {
                let (attributes, rest) = after.split_once('>')?;
                let (inside, after) = if attributes.ends_with('/') {
                    ("", rest)
                } else {
                    rest.split_once(&format!("</{name}>"))?
                };
                return Some(Element { attributes, inside, after });
            }
            // The element has a longer name.
            _ => from = start + 1,
        }
    }
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        plain.push_str(before);
        let end = after.bytes().take(MAX_ENTITY).position(|byte| byte == b';');
        let entity = end.and_then(|end| {
            let character = match &after[..end] {
                "amp" => '&',
                "lt" => '<',
                "gt" => '>',
                "quot" => '"',
                "apos" => '\'',
                entity => {
                    let number = entity.strip_prefix('#')?;
                    let number = match number.strip_prefix('x') {
                        Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                        None => number.parse().ok()?,
                    };
                    char::from_u32(number)?
                }
            };
            Some((character, &after[end + 1..]))
        });
        // An unknown entity is a plain ampersand.
        let (character, after) = entity.unwrap_or(('&', after));
        plain.push(character);
        rest = after;
    }
    plain.push_str(rest);
    plain
}

/// The meaning of `+` where `%XX` is a byte.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plus {
    /// As in HTML forms.
    Space,
    Plus,
}

fn unescape_url(text: &str, plus: Plus) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digit =
                    |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                bytes.push(digit(*high)? << 4 | digit(*low)?);
                after
            }
            (b'%', _) => return None,
            (b'+', after) if plus == Plus::Space => {
                bytes.push(b' ');
                after
            }
            (byte, after) => {
                bytes.push(*byte);
                after
            }
        };
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LISTING: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>logs</Name><EncodingType>url</EncodingType><Prefix>a/</Prefix><KeyCount>2</KeyCount>
<MaxKeys>2</MaxKeys><IsTruncated>true</IsTruncated><NextContinuationToken>1&amp;2==</NextContinuationToken>
<Contents><Key>a/one%20%C3%BC</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>&quot;x&quot;</ETag><Size>7</Size></Contents>
<Contents><Key>a/two</Key><Size>0</Size><Owner/></Contents></ListBucketResult>"#;

    #[test]
    fn a_listing_is_read() {
        let page = page(LISTING.as_bytes()).unwrap();
        assert_eq!(page.next.as_deref(), Some("1&2=="));
        let modified = Some("2026-01-02T03:04:05Z".parse().unwrap());
        assert_eq!(page.objects[0], Listed { key: "a/one ü".to_owned(), bytes: 7, modified });
        assert_eq!(page.objects[1], Listed { key: "a/two".to_owned(), bytes: 0, modified: None });
        assert_eq!(page.objects.len(), 2);
    }

    #[test]
    fn a_store_that_escapes_nothing_is_understood() {
        let xml =
            "<ListBucketResult><Contents><Key>a+b%41 &amp;</Key><Size>1</Size></Contents></ListBucketResult>";
        assert_eq!(page(xml.as_bytes()).unwrap().objects[0].key, "a+b%41 &");
    }

    /// Any writer of a bucket chooses names; the other objects must be listed all the same.
    #[test]
    fn names_that_nobody_can_ask_for_are_listed() {
        for name in ["reports//a.json", "reports/../a.json", "reports/n\u{1}/a.json", "/"] {
            let object = |key| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>");
            let xml = format!(
                "<ListBucketResult>{}{}</ListBucketResult>",
                object(name),
                object("reports/n1/a.json")
            );
            let keys: Vec<String> =
                page(xml.as_bytes()).unwrap().objects.into_iter().map(|object| object.key).collect();
            assert_eq!(keys, [name, "reports/n1/a.json"]);
        }
    }

    const BLOBS: &str = "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?>\
<EnumerationResults ServiceEndpoint=\"https://fleet.blob.core.windows.net/\" ContainerName=\"logs\"><Prefix>a/</Prefix><Blobs>\
<Blob><Name>a/one ü+&amp;%41</Name><Properties><Creation-Time>Fri, 02 Jan 2026 03:04:05 GMT</Creation-Time>\
<Last-Modified>Fri, 02 Jan 2026 03:04:06 GMT</Last-Modified><Content-Length>7</Content-Length><BlobType>BlockBlob</BlobType></Properties><OrMetadata /></Blob>\
<Blob><Name>a/folder</Name><Properties><ResourceType>directory</ResourceType></Properties></Blob>\
<Blob><Name Encoded=\"true\">a/two%EF%BF%BE+%25</Name><Properties><Content-Length>0</Content-Length></Properties></Blob></Blobs>\
<NextMarker>2!76!a&amp;b</NextMarker></EnumerationResults>";

    #[test]
    fn a_listing_of_azure_is_read() {
        let page = page(BLOBS.as_bytes()).unwrap();
        let modified = Some("2026-01-02T03:04:06Z".parse().unwrap());
        let one = Listed { key: "a/one ü+&%41".to_owned(), bytes: 7, modified };
        let two = Listed { key: "a/two\u{fffe}+%".to_owned(), bytes: 0, modified: None };
        assert_eq!(page, Page { objects: vec![one, two], next: Some("2!76!a&b".to_owned()) });
        for last in ["<NextMarker />", "<NextMarker></NextMarker>", ""] {
            let xml = format!("<EnumerationResults><Blobs />{last}</EnumerationResults>");
            assert_eq!(super::page(xml.as_bytes()), Ok(Page::default()), "{last}");
        }
    }

    #[test]
    fn what_is_no_listing_is_refused() {
        for bad in [
            "",
            "<html></html>",
            "<ListBucketResult><Contents></Contents></ListBucketResult>",
            "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
            "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>%zz</Key><Size>1</Size></Contents></ListBucketResult>",
            "<EnumerationResults><Blob><Name>a</Name></Blob></EnumerationResults>",
            "<EnumerationResults><Blob><Name Encoded=\"true\">%zz</Name><Content-Length>1</Content-Length></Blob></EnumerationResults>",
            &format!(
                "<EnumerationResults>{}</EnumerationResults>",
                "<Blob><Name>a</Name><Content-Length>1</Content-Length></Blob>".repeat(1001)
            ),
        ] {
            assert_eq!(page(bad.as_bytes()), Err(InvalidAnswer), "{bad}");
        }
    }

    #[test]
    fn a_refusal_tells_its_code() {
        let xml =
            b"<Error><Code>SignatureDoesNotMatch</Code><Message>a &lt;b&gt;\x1b[31m &#233;</Message></Error>";
        assert_eq!(refusal(xml), ("SignatureDoesNotMatch".to_owned(), "a <b>[31m é".to_owned()));
        assert_eq!(refusal(b"\xff nothing"), (String::new(), String::new()));
    }

    #[test]
    fn entities_are_short() {
        for (text, plain) in [
            ("&#x10FFFF;", "\u{10ffff}"),
            ("&#0000000233;", "é"),
            ("&&amp;;&üüüüüü;", "&&;&üüüüüü;"),
            ("&", "&"),
        ] {
            assert_eq!(unescape(text), plain, "{text}");
        }
        // The largest answer of a store is parsed in a short time.
        let many = "&".repeat(4 << 20);
        let began = std::time::Instant::now();
        assert_eq!(unescape(&many), many);
        assert!(began.elapsed().as_secs() < 60, "it takes longer than it should");
    }

    proptest! {
        #[test]
        fn no_answer_breaks_the_reader(bytes in "(<|>|/|&|;|%|ListBucketResult|Contents|Key|Size|EnumerationResults|Blob|Name|[a-z0-9 ]){0,60}") {
            let _ = page(bytes.as_bytes());
            let _ = refusal(bytes.as_bytes());
        }
    }
}
